"""DICOM files: rescaling, windows, inverted grey, colour, frames, damage."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.dicom import read_dicom
from fedchoir.data.image.resize import Resize
from fedchoir.utils.errors import UsageError

STORED = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65  # 0…4095


def write(path: Path, pixels: np.ndarray = STORED, bits: int = 12, **tags) -> Path:
    """A DICOM file with these stored values (signed if the array is)."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.Rows, dataset.Columns = pixels.shape[-2:] if tags.get("SamplesPerPixel") != 3 else pixels.shape[:2]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = pixels.itemsize * 8, bits, bits - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.tobytes()
    dataset.save_as(path)
    return path


def grey(path: Path) -> np.ndarray:
    return np.asarray(read_dicom(path)[0]).astype(int)


def test_stored_bits_are_the_range_without_a_window(tmp_path):
    assert np.array_equal(grey(write(tmp_path / "a.dcm")), np.rint(STORED / 4095 * 255))
    signed = (STORED.astype(np.int16) - 2048).clip(-2048, 2047)
    assert np.array_equal(grey(write(tmp_path / "b.dcm", signed)), np.rint((signed + 2048) / 4095 * 255))


def test_slope_intercept_and_window(tmp_path):
    """The standard's linear window (PS3.3 C.11.2.1.2) on Hounsfield units."""
    path = write(tmp_path / "a.dcm", RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    units = STORED.astype(float) * 2 - 1024
    expected = (((units - 39.5) / 399 + 0.5) * 255).clip(0, 255)
    assert np.abs(grey(path) - expected).max() <= 0.5 + 1e-9
    assert len(np.unique(grey(path))) > 3


def test_first_of_several_windows(tmp_path):
    one = write(tmp_path / "a.dcm", WindowCenter=[1000, 50], WindowWidth=[500, 20])
    two = write(tmp_path / "b.dcm", WindowCenter=1000, WindowWidth=500)
    assert np.array_equal(grey(one), grey(two))


def test_monochrome1_is_inverted(tmp_path):
    path = write(tmp_path / "a.dcm", PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(grey(path), 255 - np.rint(STORED / 4095 * 255))


def test_colour(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    path = write(
        tmp_path / "a.dcm", pixels, 8, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0
    )
    assert np.array_equal(np.asarray(read_dicom(path)[0]), pixels)


def test_first_frame_with_a_remark(tmp_path):
    path = write(tmp_path / "a.DCM", np.stack([STORED, STORED // 2]), NumberOfFrames=2)
    decoded, remarks = Decoder(Resize.to(8))(path)
    assert np.array_equal(decoded[1], np.rint(STORED / 4095 * 255))
    assert remarks.several_pages == 1


@pytest.mark.parametrize("cut", [slice(0), slice(100), slice(400), slice(-60)])
def test_damaged_files_are_named_in_one_line(tmp_path, cut):
    path = write(tmp_path / "a.dcm")
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(UsageError, match=r"a\.dcm: not a readable DICOM image") as caught:
        read_dicom(path)
    assert "\n" not in str(caught.value)


def test_the_extra_is_named_if_it_is_missing(tmp_path, monkeypatch):
    path = write(tmp_path / "a.dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UsageError, match=r"a\.dcm: DICOM files need pydicom: pip install 'fedchoir\[dicom\]'"):
        Decoder(Resize.to(8))(path)
