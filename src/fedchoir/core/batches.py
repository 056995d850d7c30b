"""Batches of private and of public samples: their order, augmentation and normalisation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedchoir.core.actions import PublicBatch
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import Augmentation, Recolor, Samples, Transform
from fedchoir.utils.rng import generator

TRANSFORMED_BYTES = 256e6  # the most that all private samples may take as floats

GeneratorFor = Callable[..., torch.Generator]
"""The generator for a named purpose, such as ("private order", epoch)."""

Source = Tensor | Callable[[Tensor], Tensor]
"""Targets of private samples: one row per sample, or a function of the augmented batch."""


@dataclass(frozen=True)
class Companions:
    """Samples of others, ``count`` of which come with every private batch.

    They are behind the private ones in the batch's inputs and labels, augmented like them, and are drawn with
    replacement. ``targets`` has rows for all of ``samples``; those of the drawn ones come with the batch by name.
    """

    samples: Samples
    count: int
    targets: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class PrivateBatches:
    """Private samples in augmented batches. Under differential privacy ``poisson_sample`` draws them."""

    data: Samples
    settings: Settings
    generator: GeneratorFor
    poisson_sample: Callable[[float, int, int], Tensor]

    def batches(
        self,
        epochs: range,
        sources: Mapping[str, Source],
        views: int = 1,
        recolor: Recolor | None = None,
        companions: Companions | None = None,
    ) -> Iterator[Batch]:
        """Epochs over the samples, each batch with its targets; further views come as ``view2`` and so on."""
        n, size, device = len(self.data), self.settings.local_batch, self.data.labels.device
        transformed = self._transformed_once()
        for epoch in epochs:
            order = torch.randperm(n, generator=self.generator("private order", epoch)).to(device)
            for number, start in enumerate(range(0, n, size)):
                index = order[start : start + size]
                if self.settings.dp_noise:  # Poisson sampling
                    index = self.poisson_sample(size / n, epoch, number).to(device)
                elif len(index) < 2 and n > 1:
                    continue  # BatchNorm cannot normalise a single sample
                inputs = self._inputs(index, epoch, number) if transformed is None else transformed[index]
                targets = {k: v[index] if isinstance(v, Tensor) else v(inputs) for k, v in sources.items()}
                targets |= {f"view{v}": self._inputs(index, epoch, number, v) for v in range(2, views + 1)}
                labels = self.data.labels[index]
                if companions is not None:
                    others = self._drawn(companions, epoch, number)
                    inputs, labels = torch.cat([inputs, others.inputs]), torch.cat([labels, others.labels])
                    targets |= others.targets
                if recolor is not None:
                    draw = self.generator("restyle", epoch, number)  # frozen stream name
                    inputs = self.data.recolored(inputs, recolor, draw)
                yield Batch(inputs, labels, targets)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples without augmentation, in order, with their labels."""
        for start in range(0, len(self.data), size):
            chunk = slice(start, start + size)
            yield self._transform(self.data.inputs[chunk]), self.data.labels[chunk]

    def steps_per_epoch(self) -> int:
        """Batches in one epoch; a last batch of a single sample is dropped."""
        n, size = len(self.data), self.settings.local_batch
        return n // size + (n % size >= 2 or n == 1)

    def _transformed_once(self) -> Tensor | None:
        """All samples, transformed in advance, if they are not augmented and small enough."""
        if self.settings.private_augment != "none" or self.data.inputs.numel() * 4 > TRANSFORMED_BYTES:
            return None
        return self._transform(self.data.inputs[:])

    def _inputs(self, index: Tensor, epoch: int, number: int, view: int = 1) -> Tensor:
        inputs = self.data.inputs[index]
        kind = self.settings.private_augment
        if kind != "none":
            place = (epoch, number) if view == 1 else (epoch, number, view)
            kind_of_view = kind if view == 1 else self.data.second_views.get(kind, kind)
            inputs = self.data.augment(inputs, kind_of_view, self.generator("private view", *place))
        return self._transform(inputs)

    def _drawn(self, companions: Companions, epoch: int, number: int) -> Batch:
        """This batch's companions, in the model's input space."""
        samples, kind = companions.samples, self.settings.private_augment
        draw = self.generator("companions", epoch, number)
        index = torch.randint(len(samples), (companions.count,), generator=draw).to(samples.labels.device)
        inputs = samples.inputs[index]
        if kind in samples.augmentations:
            inputs = samples.augment(inputs, kind, draw)
        transform = samples.transform or self.data.transform
        targets = {name: rows[index] for name, rows in companions.targets.items()}
        return Batch(inputs if transform is None else transform(inputs), samples.labels[index], targets)

    def _transform(self, inputs: Tensor) -> Tensor:
        return inputs if self.data.transform is None else self.data.transform(inputs)


class PublicView:
    """Public samples in augmented batches. Every site derives the same ones from the seed."""

    def __init__(self, public: PublicSet, *, seed: int, kind: Augmentation, device: torch.device) -> None:
        self.public = public
        self._public = public.samples.to(device)
        self._seed = seed
        self._kind = kind
        self._cache: dict[tuple[PublicBatch, str], Tensor] = {}
        self._round = -1

    def __len__(self) -> int:
        return len(self._public)

    def samples(
        self,
        batch: PublicBatch,
        recolor: Recolor | None = None,
        transform: Transform | None = None,
        kind: Augmentation | None = None,
    ) -> Tensor:
        """An augmented and transformed batch. Computed once a round for all clients; recolored for each.

        ``transform`` is the client's own, for samples that have none of their own. ``kind``: another augmentation than
        the usual one, with draws of its own.
        """
        kind = kind or self._kind
        if batch.round != self._round:
            self._cache.clear()
            self._round = batch.round
        if (batch, kind) not in self._cache:
            self._cache[batch, kind] = self._compute(batch, kind)
        inputs = self._cache[batch, kind]
        if self._public.transform is None and transform is not None:
            inputs = transform(inputs)
        if recolor is None:
            return inputs
        stream = "public restyle"  # frozen stream name
        draw = generator(self._seed, stream, batch.round, batch.epoch, batch.index)
        return self._public.recolored(inputs, recolor, draw)

    def _compute(self, batch: PublicBatch, kind: Augmentation) -> Tensor:
        order = torch.randperm(len(self), generator=generator(self._seed, "public order", batch.round, batch.epoch))
        index = order[batch.start : batch.start + batch.size].to(self._public.labels.device)
        purpose = "public view" if kind == self._kind else f"public view {kind}"
        draw = generator(self._seed, purpose, batch.round, batch.epoch, batch.index)
        inputs = self._public.augment(self._public.inputs[index], kind, draw)
        return inputs if self._public.transform is None else self._public.transform(inputs)
