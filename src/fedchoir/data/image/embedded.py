"""`digits-lite` and `photos`: a small domain-shift scenario and a public set that need no download.

Four domains of digits (ten classes), S×S×3 with S = 32:

- ``pen``: scikit-learn's handwritten digits, light on dark;
- ``print``: digits in matplotlib's fonts, light on dark;
- ``scene``: coloured digits in fonts over photographs;
- ``blend``: handwritten digits as a difference to photographs (in the manner of MNIST-M).

Training and test images share no handwritten digit, no font, and no region of a photograph; ``photos``, the public
set, uses other regions.
"""

import os
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.rendering import SIDE, glyph, handwritten, photo_crop
from fedchoir.data.splits import complement, stratified_sample
from fedchoir.utils.io import atomic_path
from fedchoir.utils.rng import derive, generator

VERSION = 1  # of the cache files: increase it when an image changes
SEED = 20240
DOMAINS = ("pen", "print", "scene", "blend")
CLASSES = tuple(str(digit) for digit in range(10))
TRAIN = {"pen": 600, "print": 800, "scene": 900, "blend": 900}
TEST = {"pen": 400, "print": 400, "scene": 450, "blend": 400}
PRIVATE = (200, 400, 500, 500)  # default private images of each client
HANDWRITTEN = {"pen train": 600, "pen test": 400, "blend train": 447, "blend test": 350}  # of 1797, disjoint
PHOTO_COUNT = 5000
PHOTO_MEAN = (0.481, 0.365, 0.314)
PHOTO_STD = (0.299, 0.252, 0.250)
TRAIN_FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
    "DejaVuSerif", "DejaVuSerif-BoldItalic", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol",
    "STIXGeneralBolIta", "cmmi10", "cmr10", "cmti10", "cmtt10",
)  # fmt: skip
TEST_FONTS = (
    "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-BoldOblique", "DejaVuSerif-Bold", "STIXGeneralItalic",
    "cmb10", "cmss10",
)  # fmt: skip

Arrays = dict[str, np.ndarray]


def cache_dir() -> Path:
    """$FEDCHOIR_CACHE, else ~/.cache/fedchoir."""
    return Path(os.environ.get("FEDCHOIR_CACHE") or Path.home() / ".cache" / "fedchoir").expanduser()


@lru_cache(maxsize=1)
def digits_lite() -> dict[str, tuple[ImageSet, ImageSet]]:
    """Domain name → (train, test); built in seconds on first use, then read from the cache."""
    arrays = _cached(f"digits-lite-v{VERSION}", build_digits_lite)
    return {name: (_image_set(arrays, name, "train"), _image_set(arrays, name, "test")) for name in DOMAINS}


@lru_cache(maxsize=1)
def photos() -> Tensor:
    """The public set: uint8 N×3×S×S crops of photographs."""
    return torch.from_numpy(_cached(f"photos-v{VERSION}", build_photos)["images"])


def _image_set(arrays: Arrays, domain: str, split: str) -> ImageSet:
    images, labels = arrays[f"{domain}_{split}_x"], arrays[f"{domain}_{split}_y"]
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels))


def build_photos() -> Arrays:
    """Build the public set."""
    rng = np.random.default_rng(derive(SEED, "photos"))
    crops = [photo_crop("public", rng, min_spread=12.0) for _ in range(PHOTO_COUNT)]
    return {"images": _channels_first(crops)}


def build_digits_lite() -> Arrays:
    """Build all four domains: ``<domain>_<split>_x`` (uint8 N×3×S×S) and ``…_y`` (int64 N)."""
    pools = _handwritten_pools()
    arrays: Arrays = {}
    for split, sizes in (("train", TRAIN), ("test", TEST)):
        for domain in DOMAINS:
            rng = np.random.default_rng(derive(SEED, domain, split))
            if domain in ("pen", "blend"):
                drawn, labels = _draw_handwritten(domain, split, pools[f"{domain} {split}"], sizes[domain], rng)
            else:
                drawn, labels = _draw_printed(domain, split, sizes[domain], rng)
            order = rng.permutation(len(labels))
            arrays[f"{domain}_{split}_x"] = _channels_first([drawn[i] for i in order])
            arrays[f"{domain}_{split}_y"] = np.asarray(labels, dtype=np.int64)[order]
    return arrays


def _handwritten_pools() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's 1797 digits in four disjoint, stratified pools: (N×8×8, N) each."""
    from sklearn.datasets import load_digits  # slow to import, and not needed with a cache

    bunch = load_digits()
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    left = torch.arange(len(labels))
    pools = {}
    for name, size in HANDWRITTEN.items():
        chosen = stratified_sample(labels[left], size, generator(SEED, "pool", name))
        index = left[chosen].numpy()
        pools[name] = (bunch.images[index], bunch.target[index])
        left = left[complement(chosen, len(left))]
    return pools


def _draw_handwritten(
    domain: str, split: str, pool: tuple[np.ndarray, np.ndarray], size: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[int]]:
    """``size`` images of a pool's digits, in turn; ``blend`` uses a digit several times."""
    drawn, labels = [], []
    for i in range(size):
        pixels, label = (column[i % len(pool[1])] for column in pool)
        if domain == "pen":
            drawn.append(_grey(handwritten(pixels, rng, wobble=0.25)))
        else:
            drawn.append(_difference(handwritten(pixels, rng), photo_crop(split, rng), rng))
        labels.append(int(label))
    return drawn, labels


def _draw_printed(domain: str, split: str, size: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[int]]:
    """``size`` images of digits in the split's fonts: every digit and font equally often."""
    fonts = TRAIN_FONTS if split == "train" else TEST_FONTS
    drawn, labels = [], []
    for i in range(size):
        label, font = i % 10, fonts[(i // 10) % len(fonts)]
        mask = glyph(font, label, rng)
        drawn.append(_grey(mask) if domain == "print" else _overlay(mask, photo_crop(split, rng), rng))
        labels.append(label)
    return drawn, labels


def _grey(mask: np.ndarray) -> np.ndarray:
    """Light on dark: coverage S×S → uint8 S×S×3."""
    return np.repeat(np.rint(mask * 255).astype(np.uint8)[:, :, None], 3, axis=2)


def _overlay(mask: np.ndarray, photo: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A digit over a photograph, in a colour that contrasts with it."""
    background = photo.mean(axis=(0, 1))
    colour = max(rng.uniform(0, 255, (4, 3)), key=lambda c: float(np.abs(c.mean() - background.mean())))
    softened = background + (photo - background) * 0.6  # less contrast, so that the digit stays legible
    opacity = mask[:, :, None]
    return np.rint(softened * (1 - opacity) + colour * opacity).clip(0, 255).astype(np.uint8)


def _difference(mask: np.ndarray, photo: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """|photo − digit|, with the photograph moved towards black or white: mid-grey would hide the digit."""
    moved = photo * 0.55 if photo.mean() < 128 else 255 - (255.0 - photo) * 0.55
    ink = 255 * rng.uniform(0.85, 1.0) * mask[:, :, None]
    return np.rint(np.abs(moved - ink)).clip(0, 255).astype(np.uint8)


def _channels_first(images: list[np.ndarray]) -> np.ndarray:
    """S×S×3 each → N×3×S×S."""
    assert all(image.shape == (SIDE, SIDE, 3) for image in images)
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))


def _cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Read ``name`` from the cache, or build and store it. A read-only cache is no error."""
    path = cache_dir() / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = build()
    with suppress(OSError), atomic_path(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return arrays
