"""Signals that ask a training to stop: it does so after the step under way."""

import signal
import sys
import threading
from typing import Any


class Stopped(KeyboardInterrupt):
    """A signal ended a training that can be resumed; no Exception, which could be taken for a fault of the step."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + number


DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What the signals that ask a program to stop do where nobody listens to them."""


class Stop:
    """Hears the signals that ask a program to stop; the second does what it does elsewhere, which is to stop at once.

    Only where nobody else listens to them, and in the main thread: no other hears signals.
    """

    def __init__(self, listens: bool) -> None:
        self.asked = 0
        self._here = listens and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Stop":
        self._set = [number for number, before in DEFAULTS.items() if signal.getsignal(number) == before]
        for number in self._set if self._here else ():
            signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._here and threading.current_thread() is threading.main_thread():
            for number in self._set:
                signal.signal(number, DEFAULTS[number])

    def _hear(self, number: int, frame: Any) -> None:
        self.asked = number
        self.__exit__()
        sys.stderr.write("stopping after this step; once more to stop at once\n")
