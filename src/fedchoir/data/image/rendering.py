"""Digits and photo crops from files that dependencies ship: matplotlib's fonts, photographs of three libraries."""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIDE = 32  # pixels of an image
_OVERSAMPLE = 3  # shapes are drawn larger by this factor and reduced, for smooth edges

PHOTOS = {  # package → files inside it; skimage's own loader is not used, because it may download
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "matplotlib": ("mpl-data/sample_data/grace_hopper.jpg",),
    "skimage": (
        "data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg", "data/motorcycle_left.png",
        "data/motorcycle_right.png", "data/hubble_deep_field.jpg", "data/retina.jpg", "data/ihc.png",
    ),
}  # fmt: skip
# Every photo is cut into five horizontal bands. Not vertical ones: the two motorcycle pictures are a rectified stereo
# pair, whose rows show the same objects.
_BANDS = {"public": (0, 2, 4), "train": (1,), "test": (3,)}
_BAND_COUNT = 5


def _package(name: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed, but digits-lite and photos are drawn from its files")
    return Path(spec.origin).parent


@lru_cache(maxsize=4)
def photo_bands(split: str) -> tuple[np.ndarray, ...]:
    """The disjoint regions of all photographs for a split (public, train or test), uint8 H×W×3 each."""
    bands = []
    for package, files in PHOTOS.items():
        for file in files:
            with Image.open(_package(package) / file) as opened:
                photo = np.asarray(opened.convert("RGB"))
            height = len(photo) // _BAND_COUNT
            bands += [photo[b * height : (b + 1) * height] for b in _BANDS[split]]
    return tuple(bands)


def photo_crop(split: str, rng: np.random.Generator, min_spread: float = 0.0) -> np.ndarray:
    """A random square of a random photo region, flipped half of the time, uint8 S×S×3.

    A square with a standard deviation below ``min_spread`` (bare sky, black space) is drawn again, at most 7 times.
    """
    bands = photo_bands(split)
    for _ in range(8):
        band = bands[rng.integers(len(bands))]
        side = int(rng.integers(SIDE, len(band) + 1))
        top = int(rng.integers(len(band) - side + 1))
        left = int(rng.integers(band.shape[1] - side + 1))
        square = Image.fromarray(band[top : top + side, left : left + side])
        crop = np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        if crop.std(axis=(0, 1)).mean() >= min_spread:
            break
    return crop[:, ::-1] if rng.random() < 0.5 else crop


@lru_cache(maxsize=512)
def _glyph(font: str, digit: int) -> Image.Image:
    """A digit in one of matplotlib's fonts, cropped to its bounding box, white on black."""
    path = _package("matplotlib") / "mpl-data" / "fonts" / "ttf" / f"{font}.ttf"
    typeface = ImageFont.truetype(path, 120, layout_engine=ImageFont.Layout.BASIC)
    canvas = Image.new("L", (240, 240))
    ImageDraw.Draw(canvas).text((60, 40), str(digit), font=typeface, fill=255)
    return canvas.crop(canvas.getbbox())


def glyph(font: str, digit: int, rng: np.random.Generator, wobble: float = 1.0) -> np.ndarray:
    """A printed digit as coverage, float S×S in [0, 1], with a small random affine transform."""
    return _place(_glyph(font, digit), height=22.0, rng=rng, wobble=wobble)


def handwritten(pixels: np.ndarray, rng: np.random.Generator, wobble: float = 1.0) -> np.ndarray:
    """A digit of scikit-learn's set (8×8, 0…16) as coverage, float S×S in [0, 1], with the same transform."""
    small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
    return _place(small.resize((96, 96), Image.Resampling.BICUBIC), height=28.0, rng=rng, wobble=wobble)


def _place(shape: Image.Image, height: float, rng: np.random.Generator, wobble: float) -> np.ndarray:
    """Centre ``shape`` at about ``height`` pixels, randomly rotated (±8°), sheared, scaled and shifted."""
    turn, shear, scale, dx, dy = rng.uniform(-1, 1, 5) * wobble
    zoom = height * _OVERSAMPLE / shape.height * (1 + 0.14 * scale)
    zoom = min(zoom, (SIDE - 3) * _OVERSAMPLE / shape.width)
    angle = np.deg2rad(8.0 * turn)
    forward = zoom * np.array(
        [[np.cos(angle), -np.sin(angle) + 0.15 * shear], [np.sin(angle), np.cos(angle)]], dtype=np.float64
    )
    inverse = np.linalg.inv(forward)
    full = SIDE * _OVERSAMPLE
    target = np.array([full / 2 + 2.0 * _OVERSAMPLE * dx, full / 2 + 2.0 * _OVERSAMPLE * dy])
    offset = np.array([shape.width / 2, shape.height / 2]) - inverse @ target
    matrix = (*inverse[0], offset[0], *inverse[1], offset[1])
    canvas = shape.transform((full, full), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(canvas.reduce(_OVERSAMPLE), dtype=np.float64) / 255
