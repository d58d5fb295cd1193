"""The law: an input is accepted or refused with a HillError of one readable line, in time, in memory and in silence."""

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
"""Most seconds of work for an input."""
PATIENCE = 4
"""Times longer that one may take which only waits: others use the machine too."""
MEMORY = 2**30
LONGEST = 2_000
"""Characters of a message that can still be read."""
UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What breaks a line, moves a terminal's cursor, turns the direction of writing, or is no character."""


class Hang(BaseException):
    """An input took too long; no `except Exception` on the way holds it up."""


class Verdict(NamedTuple):
    """What became of an input: accepted, refused or found, with the message or what broke the law."""

    kind: str
    reason: str = ""


def judge(read: Callable[[], Any], seconds: float = SECONDS, memory: int = MEMORY) -> Verdict:
    """Read an input under the law."""
    noises: list[str] = []
    try:
        with _quiet(noises), _limited(memory), _watched(seconds):
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
    return Verdict("found", noises[0]) if noises and verdict.kind != "found" else verdict


def _judge_message(message: str) -> Verdict:
    if not message.strip() or len(message) > LONGEST:
        return Verdict("found", f"a message of {len(message)} characters: {message[:80]!a}")
    if wrong := UNREADABLE.search(message):
        return Verdict("found", f"a message with {wrong[0]!a}: {message[:200]!a}")
    return Verdict("refused", message)


def _place(error: BaseException) -> str:
    """The error and the line of this package that it came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/hill/" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else "nowhere"
    return f"{type(error).__name__} at {where}: {str(error)[:200]!a}"


@contextlib.contextmanager
def _quiet(noises: list[str]) -> Iterator[None]:
    """Warnings, log records and whatever is printed are noise."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noises.append(f"logged: {record.getMessage()[:200]!a}")

    listener, printed = Listener(logging.WARNING), io.StringIO()
    logging.getLogger().addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield
    finally:
        logging.getLogger().removeHandler(listener)
        noises.extend(f"warned: {each.category.__name__}: {str(each.message)[:200]!a}" for each in warned)
        if printed.getvalue():
            noises.append(f"printed: {printed.getvalue()[:200]!a}")


@contextlib.contextmanager
def _limited(memory: int) -> Iterator[None]:
    """No more address space than now and so many bytes; what needs more is refused it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # a system that does not tell
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
    """Raise `Hang` when time is up; end the process where not even that helps."""

    def ring(*_: object) -> None:
        raise Hang

    faulthandler.dump_traceback_later(2 * PATIENCE * seconds, exit=True, file=sys.__stderr__)
    bells = {signal.SIGPROF: signal.signal(signal.SIGPROF, ring), signal.SIGALRM: signal.signal(signal.SIGALRM, ring)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in bells.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()
