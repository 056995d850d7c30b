"""Decode many image files, into memory or into a cache on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.data.decoded import DECODED
from fedchoir.data.domain import Progress
from fedchoir.data.image.cache import THREADS, cached
from fedchoir.data.image.decoding import Decoder, Remarks
from fedchoir.data.image.embedded import cache_dir
from fedchoir.data.mapped import MappedTensor, as_tensor

IN_MEMORY = 1 << 30  # bytes of decoded images
_CHUNK = 256  # images decoded at a time


@dataclass
class ImageLoader:
    """Loads the images of one scenario.

    Attributes:
        decoder: how a file becomes an array.
        cache: a folder for decoded images. Without it, only images that do not fit into memory are cached, in the
            user's cache folder.
        progress: called for every decoded image.
        memory: bytes that may still be held in memory; other images stay in the cache.
    """

    decoder: Decoder
    cache: Path | None = None
    progress: Progress | None = None
    memory: int = field(default_factory=lambda: IN_MEMORY)

    def load(self, paths: Sequence[Path], folder: Path, split: str) -> tuple[Tensor, tuple[str, ...]]:
        """uint8 N×3×H×W of the files, in order, and notes. ``folder`` and ``split`` are the cache's key."""
        resize = self.decoder.resize
        notes: tuple[str, ...] = ()
        size = len(paths) * 3 * resize.height * resize.width
        fits = size <= self.memory
        if fits and self.cache is None:
            inputs, remarks = DECODED.get(paths, self.decoder, lambda: self._decode(paths, folder.name))
        else:
            key = hashlib.sha256(repr((str(folder.resolve()), split, self.decoder)).encode()).hexdigest()[:12]
            place = (self.cache or cache_dir() / "images") / f"{folder.name}-{split}-{key}"
            tick = lambda done: self._tick(done, len(paths), folder.name)  # noqa: E731
            rows, remarks, notes = cached(paths, self.decoder, place, tick)
            mapped = MappedTensor((rows,), torch.arange(len(paths)))
            inputs = mapped[:] if fits else as_tensor(mapped)
        if fits:
            self.memory -= size
        return inputs, notes + remarks.notes(folder.name, self.decoder.grey_bits)

    def _decode(self, paths: Sequence[Path], title: str) -> tuple[Tensor, Remarks]:
        resize, remarks = self.decoder.resize, Remarks()
        images = torch.empty((len(paths), 3, resize.height, resize.width), dtype=torch.uint8)
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(paths), _CHUNK):
                for i, (row, more) in enumerate(pool.map(self.decoder, paths[start : start + _CHUNK]), start):
                    images[i] = torch.from_numpy(row)
                    remarks += more
                    self._tick(i + 1, len(paths), title)
        return images, remarks

    def _tick(self, done: int, total: int, title: str) -> None:
        if self.progress is not None:
            self.progress(done, total, title)
