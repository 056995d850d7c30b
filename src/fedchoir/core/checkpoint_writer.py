"""Writes checkpoints in a thread of its own while the run goes on, at most one at a time.

Between two rounds the states are copied to host memory and handed to the thread. Files, checksums and the pointer are
those of `checkpoint.save`, so a process may be killed at any time.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Condition

import torch
from torch import Tensor

from fedchoir.core import checkpoint
from fedchoir.core.checkpoint import Snapshot
from fedchoir.utils.errors import StorageError
from fedchoir.utils.io import sync

Item = tuple[str, dict[str, Tensor] | None]


class CheckpointWriter:
    """Copies snapshots and writes them. Errors of the thread are raised by the next call."""

    def __init__(self, folder: Path, memory: float, records: Sequence[Path] = ()) -> None:
        """``memory``: about as many bytes of copies wait for the thread. Beyond it, `start` waits. ``records``: files
        that a checkpoint counts on, so they are synced to disk before it."""
        self.work = 0.0  # processor seconds of the thread for the last checkpoint
        self._folder, self._memory, self._records = folder, memory, records
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._job: Future[Path] | None = None

    @property
    def idle(self) -> bool:
        """Whether the last checkpoint is complete, and `finished` or `wait` gave it."""
        return self._job is None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._job is not None and not self._job.done()

    def copied(self, snapshot: Snapshot) -> Snapshot | None:
        """A snapshot that clients do not change, for a later `start_copied`; None where it needs too much memory."""
        states: list[Item] = []
        needed = 0
        for name, tensors in snapshot.states:  # read to the end: an engine's processes wait for that
            needed += _nbytes(tensors)
            if needed <= self._memory:
                states.append((name, None if tensors is None else host_copy(tensors)))
            else:
                states.clear()
        return snapshot._replace(states=states) if needed <= self._memory else None

    def start(self, snapshot: Snapshot) -> None:
        """Copy a snapshot: when this returns, clients may change. Not before `finished` or `wait` gave the last one."""
        assert self.idle
        copies = Copies(self._memory)
        try:
            self._job = self._thread.submit(self._write, snapshot._replace(states=copies), copies)
            for name, tensors in snapshot.states:
                copies.put(name, None if tensors is None else host_copy(tensors))
        except BaseException:
            copies.abandon()
            self._job = None
            raise
        copies.close()

    def start_copied(self, snapshot: Snapshot) -> None:
        """As `start`, with what `copied` gave."""
        assert self.idle
        self._job = self._thread.submit(self._write, snapshot, Copies(self._memory))

    def finished(self) -> Path | None:
        """The folder of a checkpoint that was completed since the last call, if there is one."""
        return None if self.busy else self.wait()

    def wait(self) -> Path | None:
        """As `finished`, after the one that is being written."""
        if self._job is None:
            return None
        try:
            return self._job.result()
        finally:
            if not self.busy:  # Ctrl-C may end the waiting
                self._job = None

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot, copies: "Copies") -> Path:
        start = time.thread_time()
        try:
            for path in self._records:
                sync(path)
            return checkpoint.save(self._folder, *snapshot)
        except OSError as error:
            raise StorageError(f"{self._folder.parent} could not be written: {error}") from None
        finally:
            copies.abandon()  # nobody takes the rest
            self.work = time.thread_time() - start


class Copies:
    """States on their way to the thread: at most ``limit`` bytes of them, or a single larger one."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._nbytes = 0
        self._complete = self._abandoned = False
        self._changed = Condition()

    def put(self, name: str, tensors: dict[str, Tensor] | None) -> None:
        """Add a state; waits while there are too many."""
        size = _nbytes(tensors)
        with self._changed:
            self._changed.wait_for(lambda: not self._items or self._nbytes + size <= self._limit or self._abandoned)
            if not self._abandoned:
                self._items.append((name, tensors))
                self._nbytes += size
            self._changed.notify_all()

    def close(self) -> None:
        """Everything was added."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """One side has stopped: the other one stops, too."""
        with self._changed:
            self._abandoned = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Item]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._complete or self._abandoned)
                if self._abandoned:
                    raise RuntimeError("the snapshot was abandoned")
                if not self._items:
                    return
                name, tensors = self._items.popleft()
                self._nbytes -= _nbytes(tensors)
                self._changed.notify_all()
            yield name, tensors


def host_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory, which training does not change. Those of tensors on a GPU are in pinned memory: they are
    faster, and torch keeps that memory for the next snapshot."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True, requires_grad=False)
            copies[name] = pinned.copy_(tensor.detach(), non_blocking=True)
        else:
            copies[name] = tensor.detach().clone()
    for device in {t.device for t in tensors.values() if t.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _nbytes(tensors: Mapping[str, Tensor] | None) -> int:
    return sum(t.nbytes for t in (tensors or {}).values())
