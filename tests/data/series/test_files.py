"""Series from `.npz` files, and how they are told from images."""

from pathlib import Path

import numpy as np
import pytest

from fedchoir.data.series.files import looks_like_series, read_public_series, read_series
from fedchoir.utils.errors import UsageError

X = np.random.default_rng(0).normal(size=(12, 2, 8))
Y = np.arange(12) % 3


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz"


def test_splits_and_class_names(tmp_path: Path) -> None:
    raw = read_series(
        saved(tmp_path, train_x=X, train_y=Y, test_x=X[:4], test_y=Y[:4], label_names=np.array(list("abc")))
    )
    assert raw.test is not None
    assert (len(raw.train), len(raw.test), raw.classes) == (12, 4, ("a", "b", "c"))
    assert np.allclose(raw.train.inputs.numpy(), X)
    whole = read_series(saved(tmp_path, x=X.astype(np.float16), y=np.array(["p", "q"])[Y % 2]))
    assert whole.test is None
    assert whole.classes == ("p", "q")
    assert read_public_series(saved(tmp_path, x=X)).shape == (12, 2, 8)


@pytest.mark.parametrize(
    ("array", "series"),
    [
        (X, True),
        ((100 * X).astype(np.int16), True),
        (np.zeros((5, 8, 8), np.uint8), False),
        (np.full((5, 8, 8), 200), False),
        (np.random.default_rng(0).random((5, 8, 8, 3)), False),
        (np.zeros((5, 8)), False),
    ],
)
def test_arrays_of_three_dimensions_that_cannot_be_pixels_are_series(
    array: np.ndarray, series: bool, tmp_path: Path
) -> None:
    assert looks_like_series(saved(tmp_path, x=array)) is series


def test_numbers_from_0_to_1_could_be_either(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"N×2×8 with values from 0 to 1.*modality=image or modality=series"):
        looks_like_series(saved(tmp_path, x=np.abs(X) / 10))


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": X[0], "y": Y}, "x is float64 2×8; series are numbers of shape N×channels×time"),
        ({"x": np.where(X > 2, np.nan, X), "y": Y}, "NaN or infinite values in .* of 12 series"),
        ({"x": X, "y": Y[:5]}, "12 series in x but 5 labels in y"),
        ({"x": X}, "no array 'y'"),
        ({"x": X, "y": Y / 2}, "one whole number or one name per sample"),
        ({"x": np.array([["a"]] * 12)[:, :, None], "y": Y}, "series are numbers"),
    ],
)
def test_bad_files_are_one_line(arrays: dict[str, np.ndarray], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        read_series(saved(tmp_path, **arrays))


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a readable \.npz file of plain arrays"):
        read_series(saved(tmp_path, x=np.array([{"a": 1}], dtype=object), y=Y))
    (tmp_path / "b.npz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"b\.npz: not a readable"):
        looks_like_series(tmp_path / "b.npz")
