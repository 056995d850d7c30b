"""Series: their scaling, and who scales tests and public sets."""

import numpy as np
import pytest
import torch

from fedchoir.data.series.series_set import SeriesSet, Standardise
from fedchoir.data.splits import held_out
from fedchoir.utils.errors import UsageError

SERIES = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [50.0], [0.01]])
LABELS = torch.arange(40) % 4


def test_training_samples_are_scaled_by_their_own_statistics() -> None:
    samples = SeriesSet(SERIES + 7, LABELS)
    assert samples.transform is not None
    scaled = samples.transform(samples.inputs).numpy()
    assert np.abs(scaled.mean(axis=(0, 2))).max() < 1e-3
    assert np.abs(scaled.std(axis=(0, 2)) - 1).max() < 1e-3
    half = samples.subset(torch.arange(20))
    assert half.transform == Standardise.fit(half.inputs) != samples.transform


def test_tests_are_scaled_by_the_client_that_is_tested() -> None:
    train, test = held_out(SeriesSet(SERIES, LABELS), torch.Generator().manual_seed(0))
    assert train.transform is not None
    assert test.transform is None
    assert len(test) == 8
    standard = SeriesSet(SERIES, LABELS, "none")
    assert standard.for_every_client() is standard
    assert standard.transform is not None
    assert torch.equal(standard.transform(SERIES), SERIES)


def test_a_constant_channel_is_only_shifted() -> None:
    constant = torch.full((3, 1, 5), 1e6)
    assert torch.equal(Standardise.fit(constant)(constant), torch.zeros(3, 1, 5))


def test_a_transform_can_be_exported() -> None:
    json = Standardise((0.5, 1.0), (2.0, 3.0)).to_json()
    assert json == {"kind": "series-standardise", "mean": [0.5, 1.0], "std": [2.0, 3.0]}


@pytest.mark.parametrize("wrong", [SERIES.double(), SERIES[0], SERIES.byte()])
def test_other_arrays_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="float32 N×channels×time"):
        SeriesSet(wrong, torch.zeros(len(wrong), dtype=torch.int64))


def test_augmentations_of_images_are_refused() -> None:
    with pytest.raises(UsageError, match="'fccl' is not possible for series samples; choose one of none, weak"):
        SeriesSet(SERIES, LABELS).augment(SERIES, "fccl", torch.Generator())
