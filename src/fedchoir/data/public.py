"""Public sets: unlabeled images that all clients have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from fedchoir.data.image import embedded
from fedchoir.data.image.datasets import load_domain
from fedchoir.data.image.files import Progress, decode, images_below, plain, read_public_npz
from fedchoir.data.image.image_set import IMAGENET_MEAN, IMAGENET_STD, Triple, images_digest, resize
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

Normalisation = Literal["correct", "swapped"]

PUBLIC: dict[str, str] = {
    "photos": "crops of the photographs that scikit-learn, scikit-image and matplotlib ship (embedded)",
    "cifar100": "CIFAR-100, training split",
    "tiny-imagenet": "Tiny-ImageNet, training split",
    "fashion-mnist": "Fashion-MNIST, training split",
}

_CIFAR100: tuple[Triple, Triple] = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
_TINY: tuple[Triple, Triple] = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))
_GREY: tuple[Triple, Triple] = ((0.2860,) * 3, (0.3530,) * 3)
_CONSTANTS: dict[str, tuple[Triple, Triple]] = {
    "photos": (embedded.PHOTO_MEAN, embedded.PHOTO_STD),
    "cifar100": _CIFAR100,
    "tiny-imagenet": _TINY,
    "fashion-mnist": _GREY,
}
_SWAPPED = {**_CONSTANTS, "cifar100": _TINY, "tiny-imagenet": _CIFAR100}


@dataclass(frozen=True)
class PublicSet:
    """Unlabeled images.

    Attributes:
        images: uint8, N×3×S×S.
        mean: per channel, of images in [0, 1].
        std: per channel.
        notes: facts that qualify a result.
        digest: sha256 of the images; sites compare it to check that they have the same set.
    """

    name: str
    images: Tensor
    mean: Triple
    std: Triple
    notes: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.images)


def load_public(
    name: str,
    *,
    root: Path | None = None,
    seed: int = 0,
    size: int | None = None,
    image_size: int = 32,
    normalisation: Normalisation = "correct",
    strict: bool = True,
    progress: Progress | None = None,
) -> PublicSet:
    """Load a public set: ``size`` images (None: all), drawn with ``seed`` from the set's training split.

    ``name`` is one of `PUBLIC`, a folder of images or an `.npz` file. ``normalisation="swapped"`` exchanges the
    constants of CIFAR-100 and Tiny-ImageNet, like the released code. A set with fewer than ``size`` images is an error
    if ``strict``, else all of it is used, with a note.
    """
    if normalisation not in get_args(Normalisation):
        raise UsageError(f"normalisation: {normalisation!r} is not one of {', '.join(get_args(Normalisation))}")
    if size is not None and size < 1:
        raise UsageError(f"public_size: {size} given; wanted 1 or more")
    known = next((key for key in PUBLIC if plain(key) == plain(name)), None)
    images, notes = _named(known, root, image_size, progress) if known else _own(name, image_size, progress)
    if size is not None and size > len(images):
        if strict:
            raise UsageError(f"public_size: {size} images wanted, but {name} has {len(images)}")
        notes += (f"public set {name}: all {len(images)} images used, {size} requested",)
    elif size is not None and size < len(images):
        drawn = torch.randperm(len(images), generator=generator(seed, "public set"))[:size]
        images = images[drawn.sort().values]
    constants = _SWAPPED if normalisation == "swapped" else _CONSTANTS
    mean, std = constants.get(known or "", (IMAGENET_MEAN, IMAGENET_STD))
    return PublicSet(known or name, images.contiguous(), mean, std, notes, images_digest(images))


def _named(name: str, root: Path | None, image_size: int, progress: Progress | None) -> tuple[Tensor, tuple[str, ...]]:
    if name == "photos":
        return resize(embedded.photos(), image_size), ()
    domain = load_domain(name.replace("-", "_"), root, image_size=image_size, progress=progress)
    return domain.train.images, tuple(f"public set {note}" for note in domain.notes)


def _own(name: str, image_size: int, progress: Progress | None) -> tuple[Tensor, tuple[str, ...]]:
    """A user's public images: all images below a folder, or the array of an `.npz` file."""
    path = Path(name).expanduser()
    if path.suffix == ".npz" and path.is_file():
        return read_public_npz(path, image_size), ()
    if not path.is_dir():
        raise UsageError(f"public: {name!r} is neither one of {', '.join(PUBLIC)} nor a folder or an .npz file")
    files = images_below(path)
    if not files:
        raise UsageError(f"public: {path} holds no images")
    return decode(files, image_size, path.name, progress), ()
