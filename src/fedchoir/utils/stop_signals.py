"""Signals that ask a process to stop: Ctrl-C, SIGTERM, SIGUSR1 (a sweep asks its runs) and SIGUSR2 (Slurm's warning).

The first one asks, a second one stops at once. Whoever ends processes waits some seconds before it kills them:
``FEDCHOIR_GRACE`` of those (default 60) may pass until the work at hand is finished.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Self

from fedchoir.utils.errors import Interrupted, Terminated, UsageError

GRACE = "FEDCHOIR_GRACE"
GRACE_SECONDS = 60.0
STOPS: dict[signal.Signals, type[Interrupted]] = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Terminated,
    signal.SIGUSR1: Terminated,
    signal.SIGUSR2: Terminated,
}
"""What each signal raises."""


def grace_seconds() -> float:
    """How long the work at hand may take after a signal."""
    text = os.environ.get(GRACE, str(GRACE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{GRACE} = {text!r} is not possible: it should be a number of seconds")
    return seconds


def stop_now(number: int, frame: FrameType | None) -> NoReturn:
    """A handler for code that has nothing to finish."""
    raise STOPS[signal.Signals(number)]


def ignore_signals(*numbers: signal.Signals) -> None:
    """For a child process that its parent ends: signals to the whole group reach it, too."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """In its block, ``ask`` gets every request to stop, as what to raise. Handlers that somebody else has set, and
    blocks in other threads than the main one, are left alone."""

    def __init__(self, ask: Callable[[type[Interrupted]], None]) -> None:
        self._ask = ask
        self._before: dict[signal.Signals, Any] = {}
        self._last = signal.SIGTERM
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, stop_now):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self.forget_second()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def second_after(self, seconds: float) -> None:
        """As if the last signal came again after so many seconds."""
        main = threading.main_thread().ident
        assert main is not None
        self._timer = threading.Timer(seconds, signal.pthread_kill, (main, self._last))
        self._timer.daemon = True
        self._timer.start()

    def forget_second(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._last = signal.Signals(number)
        self._ask(STOPS[self._last])
