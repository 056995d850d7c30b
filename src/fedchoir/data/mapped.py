"""Tensors whose rows stay in memory-mapped files until a batch of them is read.

Every row has a hash. It tells copies of a sample apart without reading them, and it reveals a damaged file: a row is
checked when it is read for the first time.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from fedchoir.utils.errors import UsageError

HASH_BYTES = 16
RESIDENT_BYTES = (
    256 << 20
)  # of a file that may stay mapped into this process; the system may keep more in its own cache
ROWS, HASHES = "rows.bin", "hashes.bin"


def row_hash(row: np.ndarray) -> bytes:
    """The hash of a row: equal exactly when the values are."""
    return blake2b(np.ascontiguousarray(row).data, digest_size=HASH_BYTES).digest()


@dataclass(frozen=True)
class RowFile:
    """A folder with ``rows.bin``, uint8 rows of one shape, and ``hashes.bin``, a hash of each row."""

    folder: str
    count: int
    shape: tuple[int, ...]  # of a row

    def __len__(self) -> int:
        return self.count

    @cached_property
    def hashes(self) -> np.ndarray:
        """uint8, N×16."""
        return np.fromfile(Path(self.folder) / HASHES, np.uint8, self.count * HASH_BYTES).reshape(
            self.count, HASH_BYTES
        )

    def read(self, positions: np.ndarray) -> np.ndarray:
        """A copy of the rows at these positions."""
        rows = self._view[positions]
        for i in np.flatnonzero(~self._checked[positions]):
            if row_hash(rows[i]) != self.hashes[positions[i]].tobytes():
                self._discard(int(positions[i]))
        self._checked[positions] = True
        self._touched[0] += rows.nbytes
        if self._touched[0] > RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # the pages leave this process, not the system's cache
            self._touched[0] = 0
        return rows

    @cached_property
    def _map(self) -> mmap.mmap:
        with (Path(self.folder) / ROWS).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _view(self) -> np.ndarray:
        shape = (self.count, *self.shape)
        return np.frombuffer(self._map, np.uint8, math.prod(shape)).reshape(shape)

    @cached_property
    def _checked(self) -> np.ndarray:
        return np.zeros(self.count, dtype=bool)

    @cached_property
    def _touched(self) -> list[int]:
        return [0]  # bytes since the pages were given back

    def _discard(self, position: int) -> None:
        """Remove the damaged file, so that it is built again."""
        for name in (HASHES, ROWS):
            with suppress(OSError):
                (Path(self.folder) / name).unlink()
        raise UsageError(
            f"cache {self.folder}: sample {position} was damaged on disk; the cache is removed, and the next start "
            "builds it again"
        )


@dataclass(frozen=True)
class MemoryRows:
    """Rows in memory, joined with rows of files."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    @cached_property
    def hashes(self) -> np.ndarray:
        found = b"".join(map(row_hash, self.values.numpy()))
        return np.frombuffer(found, np.uint8).reshape(len(self), HASH_BYTES)

    def read(self, positions: np.ndarray) -> np.ndarray:
        return self.values.numpy()[positions]


@dataclass(frozen=True)
class MappedTensor:
    """Rows of one or several files in any order. An index gives a tensor in memory, `take` another `MappedTensor`.

    Attributes:
        sources: where the rows are.
        rows: int64, N: positions in all sources, counted from the first one on.
        target: the device of what an index gives.
    """

    sources: tuple[RowFile | MemoryRows, ...]
    rows: Tensor
    target: str = "cpu"

    dtype = torch.uint8

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.sources[0].shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        return torch.device(self.target)

    def numel(self) -> int:
        return self.shape.numel()

    def to(self, device: torch.device | str) -> Self:
        """The same rows; batches of them are copied to the device."""
        return replace(self, target=str(device))

    def take(self, index: Tensor) -> Self:
        """The rows at ``index`` (int64 positions or a boolean mask), without reading them."""
        return replace(self, rows=self.rows[index.cpu()].contiguous())

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        rows = self.rows[index.cpu() if isinstance(index, Tensor) else index]
        values = torch.from_numpy(self._read(rows.reshape(-1).numpy())).to(self.target)
        return values.view(*rows.shape, *self.sources[0].shape)

    def hashes(self) -> list[bytes]:
        """The hash of every row; files have them stored."""
        known = np.concatenate([source.hashes for source in self.sources])
        return [row.tobytes() for row in known[self.rows.numpy()]]

    def _read(self, rows: np.ndarray) -> np.ndarray:
        if len(self.sources) == 1:
            return self.sources[0].read(rows)
        starts = np.cumsum([0, *map(len, self.sources)])
        owner = np.searchsorted(starts, rows, side="right") - 1
        values = np.empty((len(rows), *self.sources[0].shape), np.uint8)
        for number in np.unique(owner):
            mine = owner == number
            values[mine] = self.sources[number].read(rows[mine] - starts[number])
        return values


def take(inputs: Tensor, index: Tensor) -> Tensor:
    """The rows at ``index`` (int64 positions or a boolean mask), in that order; of a file without reading them."""
    if isinstance(inputs, MappedTensor):
        return as_tensor(inputs.take(index))
    return inputs[index].contiguous()


def join(arrays: Sequence[Tensor]) -> Tensor:
    """All rows, one array after the other. If one of them is in files, nothing is read."""
    if not any(isinstance(array, MappedTensor) for array in arrays):
        return torch.cat(list(arrays))
    mapped = [array if isinstance(array, MappedTensor) else in_memory(array) for array in arrays]
    starts = np.cumsum([0, *(sum(map(len, array.sources)) for array in mapped)]).tolist()
    rows = torch.cat([array.rows + start for array, start in zip(mapped, starts, strict=False)])
    sources = tuple(source for array in mapped for source in array.sources)
    return as_tensor(MappedTensor(sources, rows, mapped[0].target))


def row_hashes(inputs: Tensor) -> list[bytes]:
    """One 16-byte hash per row, equal exactly when the values are."""
    return inputs.hashes() if isinstance(inputs, MappedTensor) else [row_hash(row) for row in inputs.cpu().numpy()]


def in_memory(values: Tensor) -> MappedTensor:
    """Rows in memory as a `MappedTensor`."""
    return MappedTensor((MemoryRows(values.cpu()),), torch.arange(len(values)), str(values.device))


def as_tensor(inputs: MappedTensor) -> Tensor:
    """For type checkers: samples index their inputs, and ask for shape, dtype and device, which both have."""
    return cast(Tensor, inputs)
