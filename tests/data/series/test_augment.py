"""Augmentation of series."""

import numpy as np
import pytest
import torch

from fedchoir.data.series import augment as module
from fedchoir.data.series.augment import AUGMENTATIONS, augment, crop, jitter, scale


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BATCH = torch.randn(500, 2, 64, generator=draw(1)) * torch.tensor([[1.0], [100.0]])


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_each_draw_is_reproducible_and_each_sample_has_its_own(kind: str) -> None:
    same = BATCH[:1].expand(6, 2, 64)
    one = augment(same, kind, draw())
    assert torch.equal(one, augment(same, kind, draw()))
    assert not torch.equal(one, augment(same, kind, draw(1)))
    assert len({row.numpy().tobytes() for row in one}) == 6
    assert one.shape == same.shape


def test_jitter_is_noise_relative_to_each_channel() -> None:
    noise = (jitter(BATCH, 0.1, draw()) - BATCH).numpy()
    deviation = noise.std(axis=(0, 2)) / BATCH.numpy().std(axis=(0, 2))
    assert np.allclose(deviation, 0.1, rtol=0.03)


def test_scale_multiplies_whole_channels() -> None:
    factors = (scale(BATCH, 0.1, draw()) / BATCH).numpy()
    assert np.allclose(factors, factors[:, :, :1], rtol=1e-3)
    assert abs(factors[:, :, 0].std() - 0.1) < 0.01
    assert abs(factors[:, :, 0].mean() - 1) < 0.01


def test_crop_agrees_with_numpy_interpolation_of_a_window() -> None:
    ramp = torch.arange(64.0).expand(200, 1, 64)  # the value is the position
    positions = crop(ramp, draw())[:, 0].double().numpy()
    lengths = positions[:, -1] - positions[:, 0]
    assert lengths.min() >= module.CROP * 63 - 1e-3
    assert lengths.max() <= 63 + 1e-3
    cropped = crop(BATCH[:200], draw())[:, 0].numpy()
    expected = [np.interp(p, np.arange(64), row) for p, row in zip(positions, BATCH[:200, 0].numpy(), strict=True)]
    assert np.allclose(cropped, expected, atol=1e-3)


def test_strong_changes_more_than_weak() -> None:
    weak, strong = ((augment(BATCH, kind, draw()) - BATCH).std() for kind in ("weak", "strong"))
    assert strong > 2 * weak
