"""Decode one image file of any format to 8-bit RGB. Every error names the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedchoir.data.image.dicom import SUFFIXES as DICOM_SUFFIXES
from fedchoir.data.image.dicom import read_dicom
from fedchoir.data.image.resize import Resize
from fedchoir.utils.errors import UsageError

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", *DICOM_SUFFIXES
)  # fmt: skip


@dataclass(frozen=True)
class Remarks:
    """What a user should know about files that were decoded; two remarks are added.

    Attributes:
        several_pages: files of which only the first page is used.
        deep: files with 16-bit grey values.
        largest: their largest value.
    """

    several_pages: int = 0
    deep: int = 0
    largest: int = 0

    def __add__(self, other: Remarks) -> Remarks:
        return Remarks(
            self.several_pages + other.several_pages, self.deep + other.deep, max(self.largest, other.largest)
        )

    def notes(self, title: str, grey_bits: int) -> tuple[str, ...]:
        """One sentence for each fact that a user may want to change."""
        notes: tuple[str, ...] = ()
        if self.several_pages:
            notes += (f"{title}: {self.several_pages} files have several pages; the first of each is used",)
        if self.deep and self.largest < 2 ** (grey_bits - 2):
            notes += (
                f"{title}: the largest value of {self.deep} 16-bit images is {self.largest}, so they are dark; "
                f"--set grey_bits={self.largest.bit_length()} uses their whole range",
            )
        return notes


@dataclass(frozen=True)
class Decoder:
    """How a file becomes an array.

    Attributes:
        resize: the size of the array.
        grey_bits: bits of 16-bit grey images that are used: 12 where a scanner stores 0…4095.
    """

    resize: Resize
    grey_bits: int = 16

    def __call__(self, path: Path) -> tuple[np.ndarray, Remarks]:
        """uint8 3×H×W."""
        if path.suffix.lower() in DICOM_SUFFIXES and path.is_file():
            image, frames = read_dicom(path)
            return self._resized(image), Remarks(several_pages=int(frames > 1))
        try:
            with Image.open(path) as opened:
                remarks = Remarks(several_pages=int(getattr(opened, "n_frames", 1) > 1))
                if opened.mode.startswith(("I", "F")):
                    grey, largest = self._eight_bits(path, opened)
                    return self._resized(grey), remarks + Remarks(deep=1, largest=largest)
                return self._resized(opened), remarks
        except UsageError:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
            reason = "empty file" if path.is_file() and not path.stat().st_size else "not a readable image"
            raise UsageError(f"{path}: {reason if path.is_file() else 'no such file'}") from error

    def _resized(self, image: Image.Image) -> np.ndarray:
        pixels = np.asarray(self.resize.image(image.convert("RGB")))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _eight_bits(self, path: Path, image: Image.Image) -> tuple[Image.Image, int]:
        """16-bit integers, or floats in [0, 1], as 8-bit grey; and their largest value in 16 bits."""
        values = np.asarray(image)
        top = 2**self.grey_bits - 1 if values.dtype.kind in "iu" else 1
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= top):  # also if one is NaN
            hint = f" (grey_bits={self.grey_bits})" if top > 1 else ""
            raise UsageError(f"{path}: grey values {low:g}…{high:g}; wanted 0…{top}{hint}")
        pixels = np.rint(values * (255 / top)).astype(np.uint8)
        return Image.fromarray(pixels), round(float(high) * (2**self.grey_bits - 1) / top)
