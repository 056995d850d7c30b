"""`digits-lite` and `photos`: a small federation under domain shift that needs no download.

Four domains of digits (ten classes), S×S×3 with S = 32:

- ``pen``: scikit-learn's handwritten digits, light on dark;
- ``print``: digits in matplotlib's fonts, light on dark;
- ``scene``: coloured digits in fonts over photographs;
- ``blend``: handwritten digits as a difference to photographs (in the manner of MNIST-M).

Training and test images share no handwritten digit, no font, and no region of a photograph; ``photos``, the public
set, uses regions of its own.
"""

from __future__ import annotations

import os
import tempfile
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
from fedchoir.utils.rng import derive, generator

VERSION = 1  # raise when an image would change: it names the cache files
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
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-BoldItalic",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "cmmi10",
    "cmr10",
    "cmti10",
    "cmtt10",
)
TEST_FONTS = (
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif-Bold",
    "STIXGeneralItalic",
    "cmb10",
    "cmss10",
)

Arrays = dict[str, np.ndarray]


def cache_dir() -> Path:
    """$FEDCHOIR_CACHE, else ~/.cache/fedchoir."""
    return Path(os.environ.get("FEDCHOIR_CACHE") or Path.home() / ".cache" / "fedchoir").expanduser()


@lru_cache(maxsize=1)
def digits_lite() -> dict[str, tuple[ImageSet, ImageSet]]:
    """Domain name → (train, test); built in seconds the first time, then read from the cache."""
    arrays = _cached(f"digits-lite-v{VERSION}", build_digits_lite)
    return {name: (_image_set(arrays, name, "train"), _image_set(arrays, name, "test")) for name in DOMAINS}


@lru_cache(maxsize=1)
def photos() -> Tensor:
    """The public set: uint8 N×3×S×S crops of photographs."""
    return torch.from_numpy(_cached(f"photos-v{VERSION}", build_photos)["images"])


def _image_set(arrays: Arrays, domain: str, part: str) -> ImageSet:
    images, labels = arrays[f"{domain}_{part}_x"], arrays[f"{domain}_{part}_y"]
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels))


def build_photos() -> Arrays:
    """Draw the public set afresh."""
    rng = np.random.default_rng(derive(SEED, "photos"))
    crops = [photo_crop("public", rng, min_spread=12.0) for _ in range(PHOTO_COUNT)]
    return {"images": _channels_first(crops)}


def build_digits_lite() -> Arrays:
    """Draw all four domains afresh: ``<domain>_<part>_x`` (uint8 N×3×S×S) and ``…_y`` (int64 N)."""
    pools = _handwritten_pools()
    arrays: Arrays = {}
    for part, sizes in (("train", TRAIN), ("test", TEST)):
        for domain in DOMAINS:
            rng = np.random.default_rng(derive(SEED, domain, part))
            if domain in ("pen", "blend"):
                drawn, labels = _draw_handwritten(domain, part, pools[f"{domain} {part}"], sizes[domain], rng)
            else:
                drawn, labels = _draw_printed(domain, part, sizes[domain], rng)
            order = rng.permutation(len(labels))
            arrays[f"{domain}_{part}_x"] = _channels_first([drawn[i] for i in order])
            arrays[f"{domain}_{part}_y"] = np.asarray(labels, dtype=np.int64)[order]
    return arrays


def _handwritten_pools() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's 1797 digits dealt out to four disjoint pools, classes in proportion: (N×8×8, N) each."""
    from sklearn.datasets import load_digits  # slow to import, and not needed once the cache is there

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
    domain: str, part: str, pool: tuple[np.ndarray, np.ndarray], size: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[int]]:
    """``size`` images of a pool's digits, in turn; ``blend`` shows a digit anew when its pool is used up."""
    drawn, labels = [], []
    for i in range(size):
        pixels, label = (column[i % len(pool[1])] for column in pool)
        if domain == "pen":
            drawn.append(_grey(handwritten(pixels, rng, wobble=0.25)))
        else:
            drawn.append(_difference(handwritten(pixels, rng), photo_crop(part, rng), rng))
        labels.append(int(label))
    return drawn, labels


def _draw_printed(domain: str, part: str, size: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[int]]:
    """``size`` images of digits in the part's fonts: every digit and font equally often."""
    fonts = TRAIN_FONTS if part == "train" else TEST_FONTS
    drawn, labels = [], []
    for i in range(size):
        label, font = i % 10, fonts[(i // 10) % len(fonts)]
        mask = glyph(font, label, rng)
        drawn.append(_grey(mask) if domain == "print" else _painted(mask, photo_crop(part, rng), rng))
        labels.append(label)
    return drawn, labels


def _grey(mask: np.ndarray) -> np.ndarray:
    """Light on dark: coverage S×S → uint8 S×S×3."""
    return np.repeat(np.rint(mask * 255).astype(np.uint8)[:, :, None], 3, axis=2)


def _painted(mask: np.ndarray, photo: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A digit in one colour over a photograph, in a colour that stands out from it."""
    background = photo.mean(axis=(0, 1))
    colour = max(rng.uniform(0, 255, (4, 3)), key=lambda c: float(np.abs(c.mean() - background.mean())))
    softened = background + (photo - background) * 0.6  # the photograph's contrast, so that the digit stays legible
    opacity = mask[:, :, None]
    return np.rint(softened * (1 - opacity) + colour * opacity).clip(0, 255).astype(np.uint8)


def _difference(mask: np.ndarray, photo: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """|photo − digit|, the photograph pressed towards black or white first: a mid-grey one would hide the digit."""
    pressed = photo * 0.55 if photo.mean() < 128 else 255 - (255.0 - photo) * 0.55
    ink = 255 * rng.uniform(0.85, 1.0) * mask[:, :, None]
    return np.rint(np.abs(pressed - ink)).clip(0, 255).astype(np.uint8)


def _channels_first(images: list[np.ndarray]) -> np.ndarray:
    """S×S×3 each → N×3×S×S."""
    assert all(image.shape == (SIDE, SIDE, 3) for image in images)
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))


def _cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Read ``name`` from the cache, or build and keep it. A cache that cannot be written is no error."""
    path = cache_dir() / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = build()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, arrays)
    return arrays


def _write_atomically(path: Path, arrays: Arrays) -> None:
    """Others see the whole file or none; a write that fails leaves nothing behind."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.close()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
