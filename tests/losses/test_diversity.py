"""FedGen's diversity loss against a loop over pairs."""

import numpy as np
import pytest
import torch

from fedchoir import losses


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_diversity_matches_the_loop_over_pairs():
    noise, features = draw(0, 6, 3), draw(1, 6, 4)
    total = 0.0
    for i in range(6):
        for j in range(6):
            near = np.abs(features[i].numpy() - features[j].numpy()).mean()
            total += near * ((noise[i].numpy() - noise[j].numpy()) ** 2).mean()
    assert losses.feature_diversity(noise, features).item() == pytest.approx(np.exp(-total / 36))


def test_spread_features_cost_less_and_the_noise_gets_no_gradient():
    noise, features = draw(2, 6, 3).requires_grad_(), draw(3, 6, 4).requires_grad_()
    loss = losses.feature_diversity(noise, features)
    assert losses.feature_diversity(noise, 3 * features) < loss < losses.feature_diversity(noise, 0 * features)
    loss.backward()
    assert noise.grad is None
    assert features.grad is not None
    fixed = noise.detach()
    assert torch.autograd.gradcheck(lambda f: losses.feature_diversity(fixed, f), (draw(4, 6, 4).requires_grad_(),))
