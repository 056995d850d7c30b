"""Generated public series."""

import numpy as np
import torch

from fedchoir.data.series.generate import HIGHEST, band_limited_noise, generate_public


def test_every_site_generates_the_same_series() -> None:
    one, two, other = (generate_public(3, 50, 20, seed) for seed in (0, 0, 1))
    assert one.digest() == two.digest() != other.digest()
    assert one.inputs.shape == (20, 3, 50)
    assert one.labels.eq(-1).all()
    assert torch.equal(one.transform(one.inputs), one.inputs)  # type: ignore[misc]


def test_they_are_in_standard_units_and_band_limited() -> None:
    noise = band_limited_noise(2000, 4, 128, seed=0).double().numpy()
    assert abs(noise.mean()) < 0.03
    assert abs(np.square(noise).mean() - 1) < 0.03
    spectrum = np.abs(np.fft.rfft(noise, axis=2))
    assert spectrum[..., int(HIGHEST * 128) + 1 :].max() < 1e-3
    centred = noise - noise.mean(axis=2, keepdims=True)
    changes = np.sign(centred[..., 1:]) != np.sign(centred[..., :-1])
    assert np.quantile(changes.sum(axis=2), 0.1) <= 4  # slow ones
    assert np.quantile(changes.sum(axis=2), 0.9) >= 20  # fast ones


def test_the_shortest_series_is_finite() -> None:
    assert band_limited_noise(3, 1, 1, seed=0).isfinite().all()
    assert band_limited_noise(3, 1, 2, seed=0).isfinite().all()
