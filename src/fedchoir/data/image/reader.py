"""Images as a modality of scenarios and public sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedchoir.data.domain import Domain, Progress, domain_from
from fedchoir.data.image.datasets import load_domain
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.files import read_folder, read_npz
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.public_images import PUBLIC, public_images
from fedchoir.data.image.resize import Resize
from fedchoir.data.mapped import MappedTensor, MemoryRows, RowFile
from fedchoir.data.options import DataOptions
from fedchoir.data.samples import Samples

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo

__all__ = [
    "DEFAULT_PUBLIC", "HOMOGENEOUS_MODEL", "MODELS", "PUBLIC", "PUBLIC_FILES", "SUFFIXES", "TYPES",
    "load_domains", "load_public", "read_clients",
]  # fmt: skip

SUFFIXES = (".npz",)
TYPES: tuple[type, ...] = (ImageSet, MappedTensor, RowFile, MemoryRows)
MODELS = ("resnet10", "resnet12", "efficientnet_b0", "mobilenet_v2")
HOMOGENEOUS_MODEL = "resnet12"
PUBLIC_FILES = "a folder of images or an .npz file"
DEFAULT_PUBLIC = "photos"


def image_loader(options: DataOptions, progress: Progress | None) -> ImageLoader:
    """The loader that the options describe."""
    resize = Resize.to(options.image_size, options.aspect)
    return ImageLoader(Decoder(resize, options.grey_bits), options.cache, progress)


def load_domains(
    info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
) -> list[Domain]:
    """The data sets of a named scenario."""
    loader = image_loader(options, progress)
    return [load_domain(name, root, loader) for name in info.sources]


def read_clients(paths: Mapping[str, Path], options: DataOptions, progress: Progress | None) -> list[Domain]:
    """One domain for each sub-folder or `.npz` file."""
    loader = image_loader(options, progress)
    raws = {n: read_npz(p, loader.decoder.resize) if p.is_file() else read_folder(p, loader) for n, p in paths.items()}
    return [domain_from(raw, name) for name, raw in raws.items()]


def load_public(request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
    """Images need not fit those of a client: they are resized to the same size."""
    return public_images(request)
