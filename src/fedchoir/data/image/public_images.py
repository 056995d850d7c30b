"""Public images: named sets, folders and `.npz` files, with their normalisation constants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from fedchoir.data.image import embedded
from fedchoir.data.image.datasets import load_domain
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.files import images_below, plain, read_public_npz
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.pixels import IMAGENET_MEAN, IMAGENET_STD, Triple
from fedchoir.data.image.resize import Resize
from fedchoir.data.samples import unlabeled
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest

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


def public_images(request: PublicRequest) -> tuple[str, ImageSet, tuple[str, ...]]:
    """The set's name, all its images, and notes."""
    known = next((key for key in PUBLIC if plain(key) == plain(request.name)), None)
    loader = ImageLoader(
        Decoder(Resize.to(request.image_size, request.aspect), request.grey_bits), request.cache, request.progress
    )
    images, notes = _named(known, request.root, loader) if known else _own(request.name, loader)
    constants = _SWAPPED if request.normalisation == "swapped" else _CONSTANTS
    mean, std = constants.get(known or "", (IMAGENET_MEAN, IMAGENET_STD))
    return known or request.name, ImageSet(images, unlabeled(len(images)), mean, std), notes


def _named(name: str, root: Path | None, loader: ImageLoader) -> tuple[Tensor, tuple[str, ...]]:
    if name == "photos":
        return loader.decoder.resize.tensor(embedded.photos()), ()
    domain = load_domain(name.replace("-", "_"), root, loader)
    return domain.train.inputs, tuple(f"public set {note}" for note in domain.notes)


def _own(name: str, loader: ImageLoader) -> tuple[Tensor, tuple[str, ...]]:
    """A user's public images: all images below a folder, or the array of an `.npz` file."""
    path = Path(name).expanduser()
    if path.suffix == ".npz" and path.is_file():
        return read_public_npz(path, loader.decoder.resize), ()
    if not path.is_dir():
        raise UsageError(f"public: {name!r} is neither one of {', '.join(PUBLIC)} nor a folder or an .npz file")
    files = images_below(path)
    if not files:
        raise UsageError(f"public: {path} holds no images")
    return loader.load(files, path, "public")
