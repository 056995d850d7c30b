"""Image data sets by name, found under the data root as `.npz`, in torchvision's layout, or as folders of images."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from fedchoir.data.domain import Domain, Raw, domain_from
from fedchoir.data.image import embedded, files
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.files import data_root, find_folder, find_npz
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.pixels import as_images
from fedchoir.data.image.resize import Resize
from fedchoir.data.image.torchvision_sets import SETS, fetch, read_torchvision
from fedchoir.utils.errors import UsageError

__all__ = ["SOURCES", "Source", "fetch", "load_domain"]


@dataclass(frozen=True)
class Source:
    """Where a data set may be under the data root, and how to get it."""

    stems: tuple[str, ...]  # of .npz files
    folders: tuple[str, ...] = ()  # any case and punctuation
    get: str = ""
    train_size: int | None = None  # of the complete data set
    own_test: bool = True  # whether the data set has a test split


def _fetched(name: str, train_size: int) -> Source:
    return Source((name,), get=f"`fedchoir data fetch {name.replace('_', '-')}`", train_size=train_size)


def _office(folders: tuple[str, ...], domain: str, spellings: tuple[str, ...], get: str) -> Source:
    prefix = folders[0].replace("-", "_")
    return Source(
        stems=tuple(f"{prefix}_{s}" for s in spellings),
        folders=tuple(f"{folder}/{s}" for folder in folders for s in spellings),
        get=f"{get}; unpack as {folders[-1]}/{domain}/<class>/<image>",
        own_test=False,
    )


_CALTECH = ("office-caltech", "office_caltech_10", "OfficeCaltech10")
_OFFICE31 = ("office31", "office-31", "domain_adaptation_images", "Office31")
_HOME = ("office-home", "OfficeHomeDataset_10072016", "OfficeHome")

SOURCES: dict[str, Source] = {
    "mnist": _fetched("mnist", 60000),
    "usps": _fetched("usps", 7291),
    "svhn": _fetched("svhn", 73257),
    "syn": Source(
        ("syn",),
        ("syn", "synthetic_digits", "SynthDigits"),
        "Ganin and Lempitsky's synthetic digits; unpack as syn/imgs_train/<class>/ and syn/imgs_valid/<class>/",
    ),
    "cifar10": _fetched("cifar10", 50000),
    "cifar100": _fetched("cifar100", 50000),
    "fashion_mnist": _fetched("fashion_mnist", 60000),
    "tiny_imagenet": Source(
        ("tiny_imagenet",),
        ("tiny-imagenet-200", "tiny-imagenet"),
        "cs231n.stanford.edu/tiny-imagenet-200.zip, unpacked there",
        train_size=100000,
    ),
    "vireofood172": Source(
        ("vireofood172",),
        ("vireofood172", "VireoFood"),
        "VireoFood-172, on request from its authors (Chen and Ngo, 2016), unpacked as vireofood172/",
        own_test=False,
    ),
    **{
        f"office-caltech/{d}": _office(_CALTECH, d, (d, *more), "Office-Caltech10 from its authors' page")
        for d, more in {"amazon": (), "caltech": ("caltech10",), "dslr": (), "webcam": ()}.items()
    },
    **{
        f"office31/{d}": _office(_OFFICE31, d, (d,), "Office-31 from its authors' page")
        for d in ("amazon", "dslr", "webcam")
    },
    **{
        f"office-home/{d}": _office(_HOME, d, (d,), "Office-Home from hemanthdv.org/officeHomeDataset.html")
        for d in ("Art", "Clipart", "Product", "RealWorld")
    },
}


def load_domain(name: str, root: Path | None = None, loader: ImageLoader | None = None) -> Domain:
    """A data set by the name that `SOURCES` has for it, or ``digits-lite/<domain>``.

    ``root`` is the data root: if None, $FEDCHOIR_DATA, else ~/.cache/fedchoir. Tried in order: ``<name>.npz``,
    torchvision's layout, folders of images. A data set without a test split is split 80/20, independent of the run.
    Images are 32×32 without a ``loader``.
    """
    loader = loader or ImageLoader(Decoder(Resize.to(32)))
    short = name.rpartition("/")[2]
    if name.startswith("digits-lite/") and short in embedded.DOMAINS:
        train, test = (resized(split, loader.decoder.resize) for split in embedded.digits_lite()[short])
        return Domain(short, train, test, embedded.CLASSES)
    if name not in SOURCES:
        raise UsageError(f"data set: {name!r} is not one of {', '.join(SOURCES)}")
    folder, source = data_root(root), SOURCES[name]
    raw, notes = _read(name, source, folder, loader)
    if source.train_size is not None and len(raw.train) != source.train_size:
        notes += (f"{short}: {len(raw.train)} training images found, {source.train_size} in the complete data set",)
    domain = domain_from(raw, short, notes)
    return domain if source.own_test else replace(domain, own_test=False)


def resized(images: ImageSet, resize: Resize) -> ImageSet:
    """The images at another size."""
    return replace(images, inputs=resize.tensor(images.inputs))


def _read(name: str, source: Source, root: Path, loader: ImageLoader) -> tuple[Raw, tuple[str, ...]]:
    """Read the data set from the first place that has it."""
    resize = loader.decoder.resize
    for stem in source.stems:
        path = find_npz(root, stem)
        if path is not None:
            recreated = f"syn: read from {path.name}, not from the original synthetic digits; it may be a re-creation"
            return files.read_npz(path, resize), (recreated,) if name == "syn" else ()
    raw = read_torchvision(name, root, resize)
    if raw is None and name == "syn":
        raw = _synthetic_mat(root, resize)
    for relative in source.folders:
        folder = find_folder(root, relative) if raw is None else None
        if folder is not None:
            raw = _food_lists(folder, loader) if name == "vireofood172" else None
            raw = raw or files.read_folder(folder, loader)
    if raw is None:
        raise UsageError(_missing(name, source, root))
    return raw, ()


def found(name: str, root: Path | None = None) -> str:
    """The path of a data set relative to the data root; empty if it is missing."""
    folder, source = data_root(root), SOURCES[name]
    places = [find_npz(folder, stem) for stem in source.stems]
    places += [folder / SETS[name][1]] if name in SETS else []
    places += [find_folder(folder, relative) for relative in source.folders]
    return next((str(place.relative_to(folder)) for place in places if place is not None and place.exists()), "")


def _missing(name: str, source: Source, root: Path) -> str:
    places = [f"{source.stems[0]}.npz"]
    places += [SETS[name][1]] if name in SETS else []
    places += [f"{source.folders[-1]}/"] if source.folders else []
    looked = " or ".join(places)
    return f"{name}: no {looked} in the data root {root} (--data-root or FEDCHOIR_DATA); get it: {source.get}"


def _synthetic_mat(root: Path, resize: Resize) -> Raw | None:
    """The synthetic digits as first published: two MATLAB files, X of H×W×3×N and y of N."""
    files = [root / f"synth_{split}_32x32.mat" for split in ("train", "test")]
    if not all(file.is_file() for file in files):
        return None
    sets = []
    for file in files:
        try:
            content = loadmat(file)
            labels = torch.from_numpy(content["y"].reshape(-1).astype(np.int64) % 10)
            sets.append(ImageSet(as_images(content["X"].transpose(3, 0, 1, 2), resize), labels))
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MatReadError) as error:
            raise UsageError(f"{file}: not a readable MATLAB file with X and y") from error
    return Raw(sets[0], sets[1], tuple(str(digit) for digit in range(10)))


def _food_lists(folder: Path, loader: ImageLoader) -> Raw | None:
    """VireoFood-172 as published: images under ``ready_chinese_food/``, splits listed in TR.txt and TE.txt."""
    lists = find_folder(folder, "SplitAndIngreLabel")
    images = find_folder(folder, "ready_chinese_food")
    if lists is None or images is None or not files.images_below(images):
        return None
    splits = []
    for file in (lists / "TR.txt", lists / "TE.txt"):
        if not file.is_file():
            raise UsageError(f"{file}: no such file; VireoFood-172 lists its splits there")
        rows = [line.strip().lstrip("/") for line in file.read_text().splitlines() if line.strip()]
        splits.append(([images / row for row in rows], [row.split("/")[0] for row in rows]))
    return files.read_lists(splits, folder, loader)
