"""Digits and photo crops from files of installed packages."""

from __future__ import annotations

import pytest

from fedchoir.data.image import rendering
from fedchoir.data.image.embedded import TEST_FONTS, TRAIN_FONTS


def test_every_font_draws_ten_different_digits():
    for font in TRAIN_FONTS + TEST_FONTS:
        shapes = {rendering._glyph(font, digit).tobytes() for digit in range(10)}
        assert len(shapes) == 10, font


def test_photo_regions_are_disjoint():
    bands = [band for part in rendering._BANDS.values() for band in part]
    assert sorted(bands) == list(range(rendering._BAND_COUNT))
    assert len(rendering.photo_bands("train")) == sum(map(len, rendering.PHOTOS.values())) == 12
    assert all(len(band) >= rendering.SIDE for band in rendering.photo_bands("test"))


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="skimage is not installed"):
        rendering._package("skimage")
