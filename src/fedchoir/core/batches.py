"""Batches of private and of public samples: their order, augmentation and normalisation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedchoir.core.actions import PublicBatch
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.image.augment import Augmentation, augment
from fedchoir.data.image.color_transforms import Recolor, recolored
from fedchoir.data.image.image_set import ImageSet, normalise
from fedchoir.data.public import PublicSet
from fedchoir.utils.rng import generator

NORMALISED_BYTES = 256e6  # the most that all private images may take as floats

GeneratorFor = Callable[..., torch.Generator]
"""The generator for a named purpose, such as ("private order", epoch)."""

Source = Tensor | Callable[[Tensor], Tensor]
"""Targets of private samples: one row per sample, or a function of the augmented batch."""


@dataclass(frozen=True)
class PrivateBatches:
    """Private samples in augmented batches. Under differential privacy ``poisson_sample`` draws them."""

    data: ImageSet
    settings: Settings
    generator: GeneratorFor
    poisson_sample: Callable[[float, int, int], Tensor]

    def batches(
        self, epochs: range, sources: Mapping[str, Source], views: int = 1, recolor: Recolor | None = None
    ) -> Iterator[Batch]:
        """Epochs over the samples, each batch with its targets; further views come as ``view2`` and so on."""
        n, size, device = len(self.data), self.settings.local_batch, self.data.images.device
        normalised = self._normalised_once()
        for epoch in epochs:
            order = torch.randperm(n, generator=self.generator("private order", epoch)).to(device)
            for number, start in enumerate(range(0, n, size)):
                index = order[start : start + size]
                if self.settings.dp_noise:  # Poisson sampling
                    index = self.poisson_sample(size / n, epoch, number).to(device)
                elif len(index) < 2 and n > 1:
                    continue  # BatchNorm cannot normalise a single image
                images = self._images(index, epoch, number) if normalised is None else normalised[index]
                targets = {k: v[index] if isinstance(v, Tensor) else v(images) for k, v in sources.items()}
                targets |= {f"view{v}": self._images(index, epoch, number, v) for v in range(2, views + 1)}
                if recolor is not None:
                    draw = self.generator("restyle", epoch, number)  # frozen stream name
                    images = recolored(images, recolor, draw, self.data.mean, self.data.std)
                yield Batch(images, self.data.labels[index], targets)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The images without augmentation, in order, with their labels."""
        for start in range(0, len(self.data), size):
            chunk = slice(start, start + size)
            yield self._normalised(self.data.images[chunk]), self.data.labels[chunk]

    def steps_per_epoch(self) -> int:
        """Batches in one epoch; a last batch of a single image is dropped."""
        n, size = len(self.data), self.settings.local_batch
        return n // size + (n % size >= 2 or n == 1)

    def _normalised_once(self) -> Tensor | None:
        """All images, normalised in advance, if they are not augmented and small enough."""
        if self.settings.private_augment != "none" or self.data.images.numel() * 4 > NORMALISED_BYTES:
            return None
        return self._normalised(self.data.images)

    def _images(self, index: Tensor, epoch: int, number: int, view: int = 1) -> Tensor:
        images = self.data.images[index]
        if self.settings.private_augment != "none":
            place = (epoch, number) if view == 1 else (epoch, number, view)
            images = augment(images, self.settings.private_augment, self.generator("private view", *place))
        return self._normalised(images)

    def _normalised(self, images: Tensor) -> Tensor:
        return normalise(images, self.data.mean, self.data.std).contiguous(memory_format=torch.channels_last)


class PublicView:
    """Public samples in augmented batches. Every site derives the same ones from the seed."""

    def __init__(self, public: PublicSet, *, seed: int, kind: Augmentation, device: torch.device) -> None:
        self._public = public
        self._images = public.images.to(device)
        self._seed = seed
        self._kind = kind
        self._cache: dict[PublicBatch, Tensor] = {}
        self._round = -1

    def __len__(self) -> int:
        return len(self._images)

    def images(self, batch: PublicBatch, recolor: Recolor | None = None) -> Tensor:
        """B×3×S×S, augmented and normalised. Computed once a round for all clients; recolored for each."""
        if batch.round != self._round:
            self._cache.clear()
            self._round = batch.round
        if batch not in self._cache:
            self._cache[batch] = self._compute(batch)
        if recolor is None:
            return self._cache[batch]
        stream = "public restyle"  # frozen stream name
        draw = generator(self._seed, stream, batch.round, batch.epoch, batch.index)
        return recolored(self._cache[batch], recolor, draw, self._public.mean, self._public.std)

    def _compute(self, batch: PublicBatch) -> Tensor:
        order = torch.randperm(len(self), generator=generator(self._seed, "public order", batch.round, batch.epoch))
        index = order[batch.start : batch.start + batch.size].to(self._images.device)
        draw = generator(self._seed, "public view", batch.round, batch.epoch, batch.index)
        views = augment(self._images[index], self._kind, draw)
        return normalise(views, self._public.mean, self._public.std).contiguous(memory_format=torch.channels_last)
