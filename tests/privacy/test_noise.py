"""Noise for real sites: from the operating system, Gaussian, never repeated."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy import stats

from fedchoir.privacy.noise import SecureRandom


def test_noise_is_gaussian_with_the_declared_standard_deviation() -> None:
    noise = SecureRandom().normal((200, 500), std=3.0)
    assert noise.dtype == torch.float64
    assert noise.shape == (200, 500)
    assert stats.kstest(noise.flatten().numpy() / 3.0, "norm").pvalue > 1e-4
    assert float(noise.std()) == pytest.approx(3.0, rel=0.02)


def test_ten_thousand_releases_have_no_number_in_common() -> None:
    drawn = np.concatenate([SecureRandom().normal((4,), std=1.0).numpy() for _ in range(10_000)])
    assert len(np.unique(drawn)) == drawn.size


def test_seeds_have_no_influence() -> None:
    """Whoever knows, or sets, every seed of the process learns nothing about the noise."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        drawn.append(SecureRandom().normal((1000,), std=1.0))
    assert not torch.equal(*drawn)
    assert abs(float(torch.corrcoef(torch.stack(drawn))[0, 1])) < 0.15


def test_poisson_samples_hold_each_item_with_the_same_probability() -> None:
    source = SecureRandom()
    samples = [source.poisson_sample(100, 0.2) for _ in range(2000)]
    sizes = torch.tensor([float(len(sample)) for sample in samples])
    assert float(sizes.mean()) == pytest.approx(20, abs=0.5)
    assert float(sizes.var()) == pytest.approx(16, rel=0.2)  # binomial
    counts = torch.cat(samples).bincount(minlength=100)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
