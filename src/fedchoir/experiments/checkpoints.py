"""When the checkpoints of a run are written: ``checkpoint_every``, after the last round, and when the run is stopped.

A signal (`fedchoir.utils.stop_signals`) stops a run after its current round, which is written. If the round needs more
than the grace period, and the last complete round is in a checkpoint or a copy of it is at hand, the run stops in the
middle of it. A second signal stops at once. So no complete round is lost, except where copies cost too much and the
process is killed before its round ends.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fedchoir.core.checkpoint import Snapshot
from fedchoir.core.checkpoint_writer import CheckpointWriter
from fedchoir.core.result import Event
from fedchoir.core.server import Server
from fedchoir.utils.errors import Interrupted, StorageError
from fedchoir.utils.stop_signals import StopSignals, grace_seconds

Every = Literal["auto", "never"] | int
"""``auto``, every so many rounds, or ``never``: after the last round only."""
SHARE = 0.02  # of the run's time that ``auto`` may cost
COPY_SHARE = 0.003  # of the run's time for copies of rounds that no checkpoint is written of; part of SHARE
WRITE_RATE = 5e8  # bytes in a second that the first checkpoint is expected to take; later ones are measured
LEAST_COST = 0.02  # seconds


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
        checkpoint, and signals are left alone. ``memory`` and ``records``: see `CheckpointWriter`."""
        assert server.folder is not None
        self.waited = 0.0  # seconds that the run waited for checkpoints
        self.work = 0.0  # processor seconds of the thread that writes them
        self._server, self._every, self._background = server, every, background
        self._writer = CheckpointWriter(server.folder, memory, records)
        self._expected = LEAST_COST + size / WRITE_RATE
        self._copying = 0.0  # seconds, of those that the run waited
        self._copy_expected = float("inf")  # until one was measured
        self._copy: Snapshot | None = None  # of the last round, where no checkpoint of it was begun
        self._started = self._round_began = time.perf_counter()
        self._round_seconds = 0.0
        self._saved = server.next_round  # rounds in the last checkpoint, complete or not
        self._between_rounds = False
        self._busy = False  # with a checkpoint: signals wait
        self._stop: type[Interrupted] | None = None
        self._signals = StopSignals(self._asked_to_stop)
        self._grace = grace_seconds()

    def rounds(self) -> Iterator[list[Event]]:
        """Those of the server, until a signal comes."""
        for events in self._server.rounds():
            self._round_seconds = time.perf_counter() - self._round_began
            yield events
            if self._stop is not None and self._server.next_round <= self._server.last_round:
                raise self._stop  # `__exit__` writes the checkpoint if it is not there
            self._between_rounds = False
            self._round_began = time.perf_counter()

    def recorded(self) -> None:
        """Called when the events of a round are on disk: writes its checkpoint if it is due."""
        self._between_rounds = self._busy = True
        self._signals.forget_second()
        self._copy = None
        self._take(self._writer.finished)
        if self._stop is None and self._is_due():
            self._write()
        elif self._stop is None and self._is_cheap_to_copy():
            self._keep_copy()
        self._busy = False

    def _is_due(self) -> bool:
        if isinstance(self._every, int):
            return self._server.next_round % self._every == 0
        return self._every != "never" and not self._writer.busy and self._affordable(self._expected)

    def _affordable(self, cost: float) -> bool:
        return self.waited + self.work + cost <= SHARE * (time.perf_counter() - self._started)

    def _is_cheap_to_copy(self) -> bool:
        """An engine gives states for one checkpoint at a time, so not while one is being written."""
        if self._every == "never" or not self._writer.idle or not self._affordable(self._copy_expected):
            return False
        return self._copying + self._copy_expected <= COPY_SHARE * (time.perf_counter() - self._started)

    def _keep_copy(self) -> None:
        start = time.perf_counter()
        self._copy = self._writer.copied(self._server.snapshot())
        self._copy_expected = time.perf_counter() - start
        self.waited += self._copy_expected
        self._copying += self._copy_expected
        if self._copy is None:  # too large, as the next one will be
            self._copy_expected = float("inf")

    def _write(self) -> None:
        self._take(self._writer.wait)
        start = time.perf_counter()
        self._writer.start(self._server.snapshot())
        self._saved = self._server.next_round
        self._expected = self._copy_expected = time.perf_counter() - start
        self.waited += self._expected
        if not self._background:
            self._take(self._writer.wait)

    def _write_copy(self) -> None:
        if self._copy is not None:
            self._saved = self._copy.round_index + 1
            self._writer.start_copied(self._copy)
            self._copy = None

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
        if self._background:
            self._signals.__enter__()
        self._round_began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the last complete round and wait for it. In the middle of a round that is the copy, if there is one."""
        self._busy = True
        self._signals.forget_second()
        try:
            with suppress(*(StorageError,) if error and not isinstance(error, KeyboardInterrupt) else ()):
                stopped = self._between_rounds and self._every != "never" and not isinstance(error, StorageError)
                if error is not None and not stopped:
                    if not isinstance(error, StorageError):
                        self._write_copy()
                    self._writer.wait()  # a round has failed, so the engine is not told
                else:
                    if self._saved < self._server.next_round:
                        self._write()
                    self._take(self._writer.wait)
            if isinstance(error, Interrupted):
                error.saved = self._description()
        finally:
            self._signals.__exit__()
            self._writer.close()

    def _description(self) -> str:
        if not self._saved:
            return "nothing was saved yet"
        return f"{self._saved} of {self._server.last_round + 1} rounds are saved in {self._server.folder}"

    def _asked_to_stop(self, stop: type[Interrupted]) -> None:
        """The first signal lets a round end, unless that takes too long and is not needed; the second does not."""
        if self._stop is not None or (self._every == "never" and not self._busy):
            raise stop
        self._stop = stop
        if self._busy or self._between_rounds:
            return
        complete = self._copy is not None or self._saved >= self._server.next_round
        left = self._round_seconds - (time.perf_counter() - self._round_began)
        if complete and left > self._grace:
            raise stop
        self._write_copy()  # while the round goes on: the process may be killed before its end
        if complete:
            self._signals.second_after(self._grace)
        sys.stderr.write(f"fedchoir: stopping after round {self._server.next_round + 1}; Ctrl-C again stops at once\n")
