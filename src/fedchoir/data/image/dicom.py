"""DICOM images (extra ``dicom``): the first frame as a display would show it, in 8 bits.

Stored values are rescaled (slope and intercept, or the modality's look-up table), then windowed (window centre and
width, or the VOI look-up table). A file without a window keeps the whole range of its stored bits. MONOCHROME1 is
inverted: in every image a larger value is brighter.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from pydicom import FileDataset

SUFFIXES = (".dcm", ".dicom")


def read_dicom(path: Path) -> tuple[Image.Image, int]:
    """The first frame, grey or RGB, and the number of frames."""
    try:
        from pydicom import dcmread
        from pydicom.pixels import pixel_array
    except ModuleNotFoundError:
        raise UsageError(f"{path}: DICOM files need pydicom: pip install 'fedchoir[dicom]'") from None
    try:
        dataset = dcmread(path)
        stored = pixel_array(dataset, index=0)
        pixels = _colour(stored, dataset) if dataset.SamplesPerPixel == 3 else _grey(stored, dataset)
        frames = int(dataset.get("NumberOfFrames") or 1)
    except Exception as error:  # pydicom and its decoders raise many kinds of errors on damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path}: not a readable DICOM image ({reason[:200]})") from error
    return Image.fromarray(pixels), frames


def _grey(stored: np.ndarray, dataset: FileDataset) -> np.ndarray:
    from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut

    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        colours = apply_color_lut(stored, dataset)
        return _to_bytes(colours, 0, 2 ** (8 * colours.itemsize) - 1)
    low, high = _stored_range(dataset)
    values = apply_voi_lut(apply_modality_lut(stored, dataset), dataset)
    if dataset.get("VOILUTSequence"):
        low, high = 0, _table_top(dataset.VOILUTSequence)
    elif dataset.get("ModalityLUTSequence"):
        low, high = 0, _table_top(dataset.ModalityLUTSequence)
    else:
        low, high = sorted(apply_modality_lut(np.array([low, high]), dataset).tolist())
    pixels = _to_bytes(values, low, high)
    return 255 - pixels if dataset.PhotometricInterpretation == "MONOCHROME1" else pixels


def _colour(stored: np.ndarray, dataset: FileDataset) -> np.ndarray:
    low, high = _stored_range(dataset)
    return _to_bytes(stored, low, high)


def _stored_range(dataset: FileDataset) -> tuple[int, int]:
    """The smallest and largest value that the stored bits can have."""
    bits = int(dataset.BitsStored)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dataset.PixelRepresentation else (0, 2**bits - 1)


def _table_top(sequence: Any) -> int:
    """The largest value that a look-up table can have."""
    return 2 ** int(sequence[0].LUTDescriptor[2]) - 1


def _to_bytes(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.astype(np.float64) - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)
