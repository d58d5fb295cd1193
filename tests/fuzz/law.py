"""What is checked: an input is accepted, or refused with a one-line HillError, within limits and without output."""

import contextlib
import faulthandler
import io
import logging
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hill.errors import HillError

SECONDS = 5.0
"""Maximum CPU seconds per input."""
PATIENCE = 4
"""Factor for wall-clock time, because the machine may be busy."""
MEMORY = 2**30
LONGEST = 2_000
"""Maximum number of characters of a message."""
UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Line breaks, terminal control characters, changes of the writing direction, and surrogates."""


class Hang(BaseException):
    """An input took too long. Not an `Exception`, so that no handler catches it."""


class Verdict(NamedTuple):
    """The result of an input: `accepted`, `refused` or `found` (a finding), with the message or the reason."""

    kind: str
    reason: str = ""


def judge(read: Callable[[], Any], seconds: float = SECONDS, memory: int = MEMORY) -> Verdict:
    """Read an input and check the behaviour."""
    outputs: list[str] = []
    try:
        with _quiet(outputs), _limited(memory), _watched(seconds):
            read()
        verdict = Verdict("accepted")
    except HillError as error:
        verdict = _judge_message(str(error))
    except Hang:
        verdict = Verdict("found", f"no answer within {seconds:g} s")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict = Verdict("found", _place(error))
    return Verdict("found", outputs[0]) if outputs and verdict.kind != "found" else verdict


def _judge_message(message: str) -> Verdict:
    if not message.strip() or len(message) > LONGEST:
        return Verdict("found", f"a message of {len(message)} characters: {message[:80]!a}")
    if wrong := UNREADABLE.search(message):
        return Verdict("found", f"a message with {wrong[0]!a}: {message[:200]!a}")
    return Verdict("refused", message)


def _place(error: BaseException) -> str:
    """The error, and the last line of this package in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/hill/" in frame.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} in {ours[-1].name}" if ours else "nowhere"
    return f"{type(error).__name__} at {where}: {str(error)[:200]!a}"


@contextlib.contextmanager
def _quiet(outputs: list[str]) -> Iterator[None]:
    """Collect warnings, log records and printed text."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            outputs.append(f"logged: {record.getMessage()[:200]!a}")

    listener, printed = Listener(logging.WARNING), io.StringIO()
    logging.getLogger().addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield
    finally:
        logging.getLogger().removeHandler(listener)
        outputs.extend(f"warned: {each.category.__name__}: {str(each.message)[:200]!a}" for each in warned)
        if printed.getvalue():
            outputs.append(f"printed: {printed.getvalue()[:200]!a}")


@contextlib.contextmanager
def _limited(memory: int) -> Iterator[None]:
    """Limit the address space to its current size and this many more bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _watched(seconds: float) -> Iterator[None]:
    """Raise `Hang` after a timeout; end the process if that has no effect."""

    def raise_hang(*_: object) -> None:
        raise Hang

    faulthandler.dump_traceback_later(2 * PATIENCE * seconds, exit=True, file=sys.__stderr__)
    handlers = {
        signal.SIGPROF: signal.signal(signal.SIGPROF, raise_hang),
        signal.SIGALRM: signal.signal(signal.SIGALRM, raise_hang),
    }
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()
