"""Public sets: unlabeled samples that all clients have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from fedchoir.data.domain import Progress
from fedchoir.data.image.resize import Aspect
from fedchoir.data.modalities import reader
from fedchoir.data.samples import Samples
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import is_factory
from fedchoir.utils.input_spec import ImageSize
from fedchoir.utils.rng import generator

Normalisation = Literal["correct", "swapped"]


@dataclass(frozen=True)
class PublicSet:
    """Unlabeled samples that all clients have.

    Attributes:
        notes: facts that qualify a result.
        digest: sha256 of the samples; sites compare it to check that they have the same set.
    """

    name: str
    samples: Samples
    notes: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class PublicRequest:
    """Which public set is wanted; the reader of each modality uses what it needs.

    Attributes:
        name: of a known set, the path of a folder or file, or a function that returns a torch Dataset.
        root: the data root.
        seed: of generated samples.
        size: how many samples a generator should make; a stored set is returned whole.
        image_size: side of images, or height and width.
        aspect: what happens to images of another aspect ratio.
        grey_bits: bits of 16-bit grey images that are used.
        cache: folder for decoded images.
        normalisation: ``swapped`` exchanges the constants of CIFAR-100 and Tiny-ImageNet, like the released code.
        held_out: a domain of the scenario that no client may learn from.
    """

    name: str
    root: Path | None = None
    seed: int = 0
    size: int | None = None
    image_size: ImageSize = 32
    aspect: Aspect = "squash"
    grey_bits: int = 16
    normalisation: Normalisation = "correct"
    cache: Path | None = None
    progress: Progress | None = None
    held_out: str | None = None


def load_public(
    name: str,
    *,
    like: Samples | None = None,
    root: Path | None = None,
    seed: int = 0,
    size: int | None = None,
    image_size: ImageSize = 32,
    aspect: Aspect = "squash",
    grey_bits: int = 16,
    normalisation: Normalisation = "correct",
    strict: bool = True,
    cache: Path | None = None,
    progress: Progress | None = None,
    held_out: str | None = None,
) -> PublicSet:
    """Load a public set: ``size`` samples (None: all), drawn with ``seed``.

    ``like`` are private samples that the public ones have to fit; None stands for images. A set with fewer than
    ``size`` samples is an error if ``strict``, else all of it is used, with a note. A set that is made of a scenario's
    domains leaves out the one that is ``held_out``.
    """
    if normalisation not in get_args(Normalisation):
        raise UsageError(f"normalisation: {normalisation!r} is not one of {', '.join(get_args(Normalisation))}")
    if size is not None and size < 1:
        raise UsageError(f"public_size: {size} given; wanted 1 or more")
    request = PublicRequest(
        name, root, seed, size, image_size, aspect, grey_bits, normalisation, cache, progress, held_out
    )
    modality = "image" if like is None else like.modality
    if not name:
        raise _missing(modality)
    if is_factory(name) and modality != "table":
        modality = "tensor"
    name, samples, notes = reader(modality).load_public(request, like)
    if size is not None and size > len(samples):
        if strict:
            raise UsageError(f"public_size: {size} samples wanted, but {name} has {len(samples)}")
        notes += (f"public set {name}: all {len(samples)} samples used, {size} requested",)
    elif size is not None:
        samples = draw_samples(samples, size, seed)
    return PublicSet(name, samples, notes, samples.digest())


def draw_samples(samples: Samples, size: int, seed: int) -> Samples:
    """``size`` of the samples, in their order; all if there are no more."""
    if size >= len(samples):
        return samples
    drawn = torch.randperm(len(samples), generator=generator(seed, "public set"))[:size]
    return samples.subset(drawn.sort().values)


def _missing(modality: str) -> UsageError:
    kind = reader(modality)
    choices = [*kind.PUBLIC, *([kind.PUBLIC_FILES] if kind.PUBLIC_FILES else []), "FILE.py:FUNCTION"]
    return UsageError(
        f"--public is missing: there is no default public set for these {modality} samples; it could be "
        f"{', '.join(choices[:-1])}{' or ' if choices[:-1] else ''}{choices[-1]}"
    )
