"""One file to 8-bit RGB: formats, 16-bit grey, pages, damage."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedchoir.data.image.decoding import Decoder, Remarks
from fedchoir.data.image.resize import Resize
from fedchoir.utils.errors import UsageError

DECODE = Decoder(Resize.to(8))


def random_pixels(*shape: int, high: int = 256, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, shape, dtype=dtype)


@pytest.mark.parametrize("suffix", ["png", "tif", "tiff", "bmp", "webp", "ppm", "PNG"])
def test_lossless_formats(tmp_path, suffix):
    pixels = random_pixels(8, 8, 3)
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    decoded, remarks = DECODE(tmp_path / f"a.{suffix}")
    assert np.array_equal(decoded, pixels.transpose(2, 0, 1))
    assert remarks == Remarks()


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grey_is_scaled(tmp_path, suffix):
    """65535 becomes 255. Pillow's own conversion would make 255 of everything above 255."""
    pixels = random_pixels(8, 8, high=65536, dtype=np.uint16)
    pixels[0, :3] = 0, 257, 65535
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    decoded, remarks = DECODE(tmp_path / f"a.{suffix}")
    assert decoded[0, 0, :3].tolist() == [0, 1, 255]
    assert np.array_equal(decoded[0], np.rint(pixels / 257).astype(np.uint8))
    assert np.array_equal(decoded[0], decoded[2])
    assert remarks == Remarks(deep=1, largest=65535)


def test_12_bit_grey(tmp_path):
    pixels = random_pixels(8, 8, high=4096, dtype=np.uint16)
    pixels[0, 0] = 4095
    Image.fromarray(pixels).save(tmp_path / "a.png")
    dark, remarks = DECODE(tmp_path / "a.png")
    assert dark.max() == 16
    (note,) = remarks.notes("north", 16)
    assert "--set grey_bits=12" in note
    bright, remarks = Decoder(Resize.to(8), grey_bits=12)(tmp_path / "a.png")
    assert np.array_equal(bright[0], np.rint(pixels / (4095 / 255)).astype(np.uint8))
    assert remarks.notes("north", 12) == ()
    with pytest.raises(UsageError, match=r"a\.png: grey values \d+…4095; wanted 0…255 \(grey_bits=8\)"):
        Decoder(Resize.to(8), grey_bits=8)(tmp_path / "a.png")


def test_float_tiff(tmp_path):
    pixels = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    assert np.array_equal(DECODE(tmp_path / "a.tif")[0][0], np.rint(pixels * 255).astype(np.uint8))
    for bad in (pixels * 2, np.full_like(pixels, np.nan)):
        Image.fromarray(bad).save(tmp_path / "a.tif")
        with pytest.raises(UsageError, match=r"a\.tif: grey values .*; wanted 0…1$"):
            DECODE(tmp_path / "a.tif")


def test_the_first_of_several_pages(tmp_path):
    pages = [Image.fromarray(random_pixels(8, 8) // (n + 1)) for n in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    decoded, remarks = DECODE(tmp_path / "a.tif")
    assert np.array_equal(decoded[0], np.asarray(pages[0]))
    assert (remarks + remarks).notes("north", 16) == ("north: 2 files have several pages; the first of each is used",)


def test_aspect_ratio_of_a_file(tmp_path):
    Image.new("RGB", (40, 20), "white").save(tmp_path / "a.png")
    decoded, _ = Decoder(Resize(20, 20, "pad"))(tmp_path / "a.png")
    assert decoded.shape == (3, 20, 20)
    assert decoded[0].any(axis=1).sum() == 10
    decoded, _ = Decoder(Resize(10, 20))(tmp_path / "a.png")
    assert decoded.shape == (3, 10, 20)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "bmp"])
def test_damaged_files_are_named(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(random_pixels(64, 64, 3)).save(path)
    whole = path.read_bytes()
    for content, reason in ((b"", "empty file"), (b"junk", "not a readable image"), (whole[:600], "not a readable")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=reason) as caught:
            DECODE(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
