"""When the checkpoints of a run are written: ``checkpoint_every``, after the last round, and when the run is stopped.

Ctrl-C and SIGTERM stop a run at once where the last finished round is in a checkpoint. Else the current round is
finished and written first; a second Ctrl-C stops at once.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

from fedchoir.core.checkpoint_writer import CheckpointWriter
from fedchoir.core.result import Event
from fedchoir.core.server import Server
from fedchoir.utils.errors import Interrupted, StorageError, Terminated

Every = Literal["auto", "never"] | int
"""``auto``, every so many rounds, or ``never``: after the last round only."""
SHARE = 0.02  # of the run's time that ``auto`` may cost
WRITE_RATE = 5e8  # bytes in a second that the first checkpoint is expected to take; later ones are measured
LEAST_COST = 0.02  # seconds
HANDLERS: dict[signal.Signals, tuple[Any, type[Interrupted]]] = {
    signal.SIGINT: (signal.default_int_handler, Interrupted),
    signal.SIGTERM: (signal.SIG_DFL, Terminated),
}
"""Signals that stop a run: the handler that this module may replace, and what is raised."""


def read_every(value: Any) -> Every:
    """The value of an option.

    >>> read_every("auto"), read_every("5"), read_every(5)
    ('auto', 5, 5)
    """
    text = str(value)
    if text in ("auto", "never"):
        return text  # type: ignore[return-value]
    if isinstance(value, int | str) and not isinstance(value, bool) and text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError("auto, never, or a number of rounds from 1")


class Checkpoints:
    """Writes the checkpoints of a server: a context around its rounds.

    What ``auto`` costs is the time that the run waits, and the processor time of the thread that writes: training may
    need that processor, too.
    """

    def __init__(
        self,
        server: Server,
        every: Every,
        *,
        memory: float,
        size: float = 0.0,
        records: Sequence[Path] = (),
        background: bool = True,
    ) -> None:
        """``size``: about how many bytes the first checkpoint has. ``background``: else the run waits for every
        checkpoint. ``memory`` and ``records``: see `CheckpointWriter`."""
        assert server.folder is not None
        self.waited = 0.0  # seconds that the run waited for checkpoints
        self.work = 0.0  # processor seconds of the thread that writes them
        self._server, self._every, self._background = server, every, background
        self._writer = CheckpointWriter(server.folder, memory, records)
        self._expected = LEAST_COST + size / WRITE_RATE
        self._started = time.perf_counter()
        self._saved = server.next_round  # rounds in the last checkpoint, complete or not
        self._between_rounds = False
        self._busy = False  # with a checkpoint: signals wait
        self._stop: type[Interrupted] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def rounds(self) -> Iterator[list[Event]]:
        """Those of the server."""
        for events in self._server.rounds():
            yield events
            self._between_rounds = False

    def recorded(self) -> None:
        """Called when the events of a round are on disk: writes its checkpoint if it is due."""
        self._between_rounds = self._busy = True
        self._take(self._writer.finished)
        if self._stop is None and self._is_due():
            self._write()
        self._busy = False
        if self._stop is not None:
            raise self._stop  # `__exit__` writes the checkpoint if it is not there

    def _is_due(self) -> bool:
        if isinstance(self._every, int):
            return self._server.next_round % self._every == 0
        if self._every == "never" or self._writer.busy:
            return False
        spent = self.waited + self.work + self._expected
        return spent <= SHARE * (time.perf_counter() - self._started)

    def _write(self) -> None:
        self._take(self._writer.wait)
        start = time.perf_counter()
        self._writer.start(self._server.snapshot())
        self._saved = self._server.next_round
        self._expected = time.perf_counter() - start
        self.waited += self._expected
        if not self._background:
            self._take(self._writer.wait)

    def _take(self, completed: Callable[[], Any]) -> None:
        """Tell the server about a checkpoint that is complete now."""
        start = time.perf_counter()
        if (folder := completed()) is not None:
            self._server.saved(folder)
            self.waited += time.perf_counter() - start
            self.work += self._writer.work
            self._expected += self._writer.work

    # -- the end of a run ------------------------------------------------------------------------------------------

    def __enter__(self) -> "Checkpoints":
        if self._background and threading.current_thread() is threading.main_thread():
            for number, (replaced, _) in HANDLERS.items():
                if signal.getsignal(number) == replaced:
                    self._before[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the last round, if the run is between two rounds, and wait for it."""
        self._busy = True
        try:
            with suppress(*(StorageError,) if error and not isinstance(error, KeyboardInterrupt) else ()):
                stopped = self._between_rounds and self._every != "never" and not isinstance(error, StorageError)
                if error is not None and not stopped:
                    self._writer.wait()  # a round has failed, so the engine is not told
                    return
                if self._saved < self._server.next_round:
                    self._write()
                self._take(self._writer.wait)
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._writer.close()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        _, stop = HANDLERS[signal.Signals(number)]
        current = self._between_rounds or self._saved >= self._server.next_round or self._every == "never"
        if self._stop is not None or (current and not self._busy):
            raise stop
        self._stop = stop
        if not current:
            sys.stderr.write(
                f"fedchoir: stopping after round {self._server.next_round + 1}, because earlier rounds are not in a "
                "checkpoint yet; Ctrl-C again stops at once\n"
            )
