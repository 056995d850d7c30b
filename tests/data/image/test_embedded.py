"""The embedded scenario and public set, and their cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir.data.image import embedded
from fedchoir.data.image.embedded import CLASSES, DOMAINS, TEST, TEST_FONTS, TRAIN, TRAIN_FONTS, cache_dir


@pytest.fixture(scope="module")
def lite():
    return embedded.digits_lite()


def small_build():
    return {"images": np.zeros((1, 3, 32, 32), np.uint8)}


@pytest.mark.parametrize("domain", DOMAINS)
def test_sizes_classes_and_no_image_in_both_splits(lite, domain):
    train, test = lite[domain]
    assert (len(train), len(test)) == (TRAIN[domain], TEST[domain])
    for part in (train, test):
        assert part.inputs.shape[1:] == (3, 32, 32)
        counts = part.labels.bincount(minlength=10)
        assert len(counts) == len(CLASSES) == 10
        assert int(counts.min()) > 0.8 * len(part) / 10
        assert len(set(part.hashes())) == len(part)
    assert not set(train.hashes()) & set(test.hashes())


def test_handwritten_pools_share_no_digit():
    pools = embedded._handwritten_pools()
    seen = [digit.tobytes() for digits, _ in pools.values() for digit in digits]
    assert len(seen) == len(set(seen)) == sum(embedded.HANDWRITTEN.values()) == 1797


def test_fonts_are_split():
    assert not set(TRAIN_FONTS) & set(TEST_FONTS)
    assert len(TRAIN_FONTS) + len(TEST_FONTS) == 22


def test_domains_look_different(lite):
    pen, print_, scene, blend = (lite[domain][0].inputs.float() for domain in DOMAINS)
    for grey in (pen, print_):
        assert torch.equal(grey[:, 0], grey[:, 2])
    for colour in (scene, blend):
        assert (colour[:, 0] - colour[:, 2]).abs().mean() > 10
    assert pen.mean() < 90 < scene.mean()


def test_digits_are_legible(lite):
    """A classifier on plain pixels of the grey domains, and a contrast check on the coloured ones."""
    from sklearn.linear_model import LogisticRegression

    for domain in ("pen", "print"):
        train, test = (p.inputs[:, 0, ::2, ::2].flatten(1).numpy() / 255 for p in lite[domain])
        model = LogisticRegression(max_iter=200).fit(train, lite[domain][0].labels)
        assert model.score(test, lite[domain][1].labels) > 0.85
    for domain in ("scene", "blend"):
        spread = lite[domain][1].inputs.float().std(dim=(1, 2, 3))
        assert float((spread > 15).float().mean()) > 0.97


def test_build_is_deterministic(lite):
    arrays = embedded.build_digits_lite()
    for domain in DOMAINS:
        assert np.array_equal(arrays[f"{domain}_test_x"], lite[domain][1].inputs.numpy())


def test_photos(monkeypatch):
    images = embedded.photos()
    assert images.shape == (embedded.PHOTO_COUNT, 3, 32, 32)
    assert images.dtype == torch.uint8
    scaled = images.float() / 255
    measured = torch.stack([scaled.mean(dim=(0, 2, 3)), scaled.std(dim=(0, 2, 3))])
    expected = torch.tensor([embedded.PHOTO_MEAN, embedded.PHOTO_STD])
    torch.testing.assert_close(measured, expected, atol=0.01, rtol=0)


def test_cache_is_written_read_and_rebuilt_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCHOIR_CACHE", str(tmp_path / "deep" / "cache"))
    embedded._cached("set-v1", small_build)
    assert [p.name for p in cache_dir().iterdir()] == ["set-v1.npz"]
    again = embedded._cached("set-v1", lambda: pytest.fail("built again"))
    assert np.array_equal(again["images"], small_build()["images"])
    (cache_dir() / "set-v1.npz").write_bytes(b"PK\x03\x04 half a file")
    assert embedded._cached("set-v1", small_build)["images"].shape == (1, 3, 32, 32)
    embedded._cached("set-v1", lambda: pytest.fail("not repaired"))


def test_unwritable_cache_means_no_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDCHOIR_CACHE", str(tmp_path / "file"))
    assert embedded._cached("set-v1", small_build)["images"].shape == (1, 3, 32, 32)


def test_cache_dir_defaults_to_the_home(monkeypatch):
    monkeypatch.delenv("FEDCHOIR_CACHE")
    assert cache_dir().parts[-2:] == (".cache", "fedchoir")
