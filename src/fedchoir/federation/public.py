"""The public set as clients see it: one order, one augmentation and one normalisation for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedchoir.data.augment import Augmentation, augment
from fedchoir.data.images import normalise
from fedchoir.data.public import PublicSet
from fedchoir.data.style import Restyle, restyled
from fedchoir.federation.phases import PublicBatch
from fedchoir.rng import generator


class PublicView:
    """Turns the name of a public batch into images: every site derives the same ones from the seed."""

    def __init__(self, public: PublicSet, *, seed: int, kind: Augmentation, device: torch.device) -> None:
        self._public = public
        self._images = public.images.to(device)
        self._seed = seed
        self._kind = kind
        self._made: dict[PublicBatch, Tensor] = {}
        self._round = -1

    def __len__(self) -> int:
        return len(self._images)

    def images(self, batch: PublicBatch, restyle: Restyle | None = None) -> Tensor:
        """B×3×S×S, augmented and normalised. Made once a round, however many clients look at it; restyled for each."""
        if batch.round != self._round:
            self._made.clear()
            self._round = batch.round
        if batch not in self._made:
            self._made[batch] = self._make(batch)
        if restyle is None:
            return self._made[batch]
        draw = generator(self._seed, "public restyle", batch.round, batch.epoch, batch.index)
        return restyled(self._made[batch], restyle, draw, self._public.mean, self._public.std)

    def _make(self, batch: PublicBatch) -> Tensor:
        order = torch.randperm(len(self), generator=generator(self._seed, "public order", batch.round, batch.epoch))
        index = order[batch.start : batch.start + batch.size].to(self._images.device)
        draw = generator(self._seed, "public view", batch.round, batch.epoch, batch.index)
        views = augment(self._images[index], self._kind, draw)
        return normalise(views, self._public.mean, self._public.std).contiguous(memory_format=torch.channels_last)
