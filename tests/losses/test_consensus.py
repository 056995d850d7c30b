"""The consensus of DS-FL, Selective-FD and Fed-ET against loops, and their properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from fedchoir import losses


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(p):
    return -(p * p.log()).sum(dim=1)


def test_entropy_reduction_is_the_softmax_of_probabilities():
    p = draw(0, 5, 4).softmax(dim=1)
    np.testing.assert_allclose(losses.entropy_reduction(p, 0.1), softmax(p.numpy() / 0.1), rtol=1e-12)
    torch.testing.assert_close(losses.entropy_reduction(p), losses.entropy_reduction(p, 0.1))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_entropy_reduction_sharpens_ambiguous_predictions_and_keeps_their_order(seed):
    p = (0.3 * draw(seed, 6, 4)).softmax(dim=1)
    sharp = losses.entropy_reduction(p, 0.1)
    assert (entropy(sharp) < entropy(p)).all()
    assert torch.equal(sharp.argsort(dim=1), p.argsort(dim=1))


def test_soft_cross_entropy_matches_the_loop_and_counts_selected_samples_alone():
    z, t, w = draw(1, 5, 4), draw(2, 5, 4).softmax(dim=1), torch.tensor([1.0, 0.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    each = [-(t[b].numpy() * np.log(softmax(z[b].numpy()))).sum() for b in range(5)]
    assert losses.soft_cross_entropy(z, t).item() == pytest.approx(np.mean(each))
    assert losses.soft_cross_entropy(z, t, w).item() == pytest.approx(np.dot(w.numpy(), each) / 2.5)


def test_without_selected_samples_loss_and_gradient_are_zero():
    z = draw(3, 5, 4).requires_grad_()
    loss = losses.soft_cross_entropy(z, draw(4, 5, 4).softmax(dim=1), torch.zeros(5, dtype=torch.float64))
    loss.backward()
    assert loss.item() == 0
    assert (z.grad == 0).all()


def test_the_confident_consensus_matches_the_loop():
    z = draw(5, 3, 5, 4)
    counted = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 1, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.bool)
    for mask in (None, counted):
        found = losses.confident_consensus(z, mask)
        for b in range(5):
            who = [k for k in range(3) if mask is None or counted[k, b]]
            variances = [np.var(z[k, b].numpy()) for k in who]
            parts = [v * z[k, b].numpy() for v, k in zip(variances, who, strict=True)]
            expected = sum(parts) / sum(variances) if who else np.zeros(4)
            np.testing.assert_allclose(found[b], expected, rtol=1e-10, atol=1e-12)


def test_a_client_without_an_opinion_has_no_weight():
    z = draw(6, 2, 5, 4)
    z[1] = 3.0
    torch.testing.assert_close(losses.confident_consensus(z), z[0])
    assert (losses.confident_consensus(torch.zeros(2, 5, 4)) == 0).all()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_diversity_term_matches_the_loop(temperature):
    z, d, e = draw(7, 5, 4).requires_grad_(), draw(8, 5, 4), torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    total = 0.0
    for b in (0, 2, 4):
        p, q = softmax(d[b].numpy() / temperature), softmax(z[b].detach().numpy() / temperature)
        total += (p * np.log(p / q)).sum()
    loss = losses.diversity_kl(z, d, e, temperature)
    assert loss.item() == pytest.approx(total / 5)
    loss.backward()
    assert z.grad[[0, 2, 4]].abs().min() > 0
    torch.testing.assert_close(z.grad[[1, 3]], torch.zeros(2, 4, dtype=torch.float64))


def test_nothing_depends_on_values_on_the_host():
    with FakeTensorMode():
        z, t, w = torch.empty(6, 4, requires_grad=True), torch.empty(6, 4), torch.empty(6)
        (losses.soft_cross_entropy(z, t, w) + losses.diversity_kl(z, t, w)).backward()
        losses.confident_consensus(torch.empty(3, 6, 4), torch.empty(3, 6, dtype=torch.bool))
