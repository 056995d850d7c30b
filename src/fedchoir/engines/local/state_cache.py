"""Where the states of clients lie that are not at work: in memory as far as a budget goes, beyond it on disk.

A state that the last checkpoint holds as well needs no file of its own: it is let go, and read from there when the
client is woken. Files are safetensors and belong to one process: nothing is ever resumed from them.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from fedchoir.core.client_state import State
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import StorageError

Read = Callable[[str], State]
"""Reads what a checkpoint holds under a name."""


def file_name(client: int) -> str:
    """What a client's state is called, in a checkpoint and on disk."""
    return f"client-{client:05d}"


class StateCache:
    """States by client. ``budget`` is how many bytes of them may stay in memory."""

    def __init__(self, budget: float, folder: Path | None = None) -> None:
        self.budget = budget
        self._folder = folder
        self._memory: OrderedDict[int, State] = OrderedDict()  # the one that came last is last
        self._bytes = 0
        self._files: set[int] = set()
        self._saved: set[int] = set()
        self._read: Read | None = None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._bytes

    def put(self, client: int, state: State) -> None:
        """Keep the state of a client that goes to rest."""
        self._memory[client] = state
        self._bytes += nbytes(state)
        self.fit()

    def get(self, client: int) -> State:
        """Hand out what was put last."""
        if client in self._memory:
            state = self._memory.pop(client)
            self._bytes -= nbytes(state)
            return state
        if client in self._files:
            self._files.discard(client)
            state = load_tensors(self._path(client))
            self._path(client).unlink()
            return state
        assert self._read is not None, f"client {client} was never put"
        return self._read(file_name(client))

    def changed(self, client: int) -> None:
        """What the last checkpoint holds of this client is out of date."""
        self._saved.discard(client)

    def is_saved(self, client: int) -> bool:
        """Whether the last checkpoint holds the client as it is."""
        return client in self._saved

    def drop(self, client: int) -> None:
        """Forget a client."""
        self._saved.discard(client)
        self._bytes -= nbytes(self._memory.pop(client, {}))
        if client in self._files:
            self._files.discard(client)
            self._path(client).unlink()

    def saved(self, clients: set[int], read: Read) -> None:
        """A checkpoint, which ``read`` reads, holds exactly these clients, as they are now."""
        for client in self._files:
            self._path(client).unlink()
        self._files.clear()
        self._saved, self._read = set(clients), read

    def peek(self, client: int) -> State:
        """What was put last, without taking it out."""
        return self._memory[client] if client in self._memory else load_tensors(self._path(client))

    def fit(self) -> None:
        """Move those that rest longest out of memory until the others fit."""
        while self._bytes > self.budget and self._memory:
            client, state = self._memory.popitem(last=False)
            self._bytes -= nbytes(state)
            if client not in self._saved:
                self._write(client, state)

    def close(self) -> None:
        """Remove the files."""
        self._files.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, client: int, state: State) -> None:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="fedchoir-resting-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            save_tensors(self._path(client), state)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"the state of client {client} could not be moved to {self._folder}: {error}") from None
        self._files.add(client)

    def _path(self, client: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{file_name(client)}.safetensors"


def nbytes(state: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in state.values())
