"""Cache for the states of inactive clients: in memory up to a budget, beyond it on disk.

A state that the last checkpoint also holds needs no file: it is dropped and read from there when the client becomes
active again. The files are safetensors and belong to one process; a run is never resumed from them.
"""

import shutil
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path

from safetensors import SafetensorError

from fedchoir.core.client_state import State
from fedchoir.core.interfaces import ReadState
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import StorageError


def state_name(client: int) -> str:
    """The name of a client's state in a checkpoint and on disk."""
    return f"client-{client:05d}"


class StateCache:
    """States by client. At most ``budget`` bytes of them stay in memory."""

    def __init__(self, budget: float, folder: Path | None = None) -> None:
        self.budget = budget
        self.nbytes = 0  # in memory
        self._folder = folder
        self._memory: OrderedDict[int, State] = OrderedDict()  # least recently added first
        self._files: set[int] = set()
        self._checkpointed: set[int] = set()  # clients whose current state is in the last complete checkpoint
        self._writing: set[int] = set()  # clients whose current state is in the one that is being written
        self._read: ReadState | None = None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # a killed process leaves its files

    def put(self, client: int, state: State) -> None:
        """Add the state of a client that becomes inactive."""
        self._memory[client] = state
        self.nbytes += state_bytes(state)
        self.evict()

    def pop(self, client: int) -> State:
        """Remove and return a client's state; from the checkpoint if it is nowhere else."""
        if client in self._memory or client in self._files:
            state = self.peek(client)
            self._remove(client)
            return state
        assert self._read is not None, f"client {client} has no state"
        return self._read(state_name(client))

    def peek(self, client: int) -> State:
        """A client's state, which stays in the cache."""
        return self._memory[client] if client in self._memory else load_tensors(self._path(client))

    def drop(self, client: int) -> None:
        """Forget a client."""
        self.mark_changed(client)
        self._remove(client)

    def mark_changed(self, client: int) -> None:
        """The states of this client in checkpoints are out of date."""
        self._checkpointed.discard(client)
        self._writing.discard(client)

    def is_checkpointed(self, client: int) -> bool:
        """Whether the last complete checkpoint holds the client's current state."""
        return client in self._checkpointed

    def begin_checkpoint(self, clients: set[int]) -> None:
        """A checkpoint with the current states of exactly these clients is being written."""
        self._writing = set(clients)

    def end_checkpoint(self, read: ReadState) -> None:
        """That checkpoint is complete, and ``read`` reads it. Clients that have changed since are not in it."""
        self._checkpointed, self._writing, self._read = self._writing, set(), read
        for client in self._files & self._checkpointed:
            self._path(client).unlink()
        self._files -= self._checkpointed

    def evict(self) -> None:
        """Move the oldest states out of memory until the rest is within the budget."""
        while self.nbytes > self.budget and self._memory:
            client, state = self._memory.popitem(last=False)
            self.nbytes -= state_bytes(state)
            if client not in self._checkpointed:
                self._write(client, state)

    def clear(self) -> None:
        """Forget all clients and delete the files."""
        self._memory.clear()
        self._files.clear()
        self.nbytes = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _remove(self, client: int) -> None:
        self.nbytes -= state_bytes(self._memory.pop(client, {}))
        if client in self._files:
            self._files.discard(client)
            self._path(client).unlink()

    def _write(self, client: int, state: State) -> None:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="fedchoir-states-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            save_tensors(self._path(client), state)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"the state of client {client} could not be moved to {self._folder}: {error}") from None
        self._files.add(client)

    def _path(self, client: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{state_name(client)}.safetensors"


def state_bytes(state: State) -> int:
    return sum(t.nbytes for t in state.values())
