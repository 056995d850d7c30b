"""A client's mean correlations and the mutual-understanding term."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedchoir import losses
from fedchoir.methods.ssl.correlations import Correlations, choose, unit_columns


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def race(scale: Literal["unit", "raw"]) -> float:
    """Two clients whose features grow towards each other's, one of which starts a little larger: the final length."""
    zs = [normal(8, 12, 4).requires_grad_(), (1.5 * normal(9, 12, 4)).requires_grad_()]
    for _ in range(60):
        parts = [Correlations(4, scale) for _ in zs]
        for z, part in zip(zs, parts, strict=True):
            part.term(z.detach(), None)
        for k, z in enumerate(zs):
            loss = Correlations(4, scale).term(z, parts[1 - k].mean()[None])
            (gradient,) = torch.autograd.grad(loss, z)
            with torch.no_grad():
                z -= 3.0 * gradient  # a step that overshoots
    return max(float(z.detach().norm()) for z in zs)


def test_the_mean_of_a_round_is_the_mean_of_its_batches() -> None:
    part = Correlations(4, "raw")
    batches = [normal(seed, 9, 4) for seed in range(3)]
    for z in batches:
        part.term(z, None)
    expected = np.zeros((4, 4))
    for z in batches:
        r = np.linalg.qr(z.double().numpy())[1]
        expected += np.sign(np.diag(r))[:, None] * r / 3
    np.testing.assert_allclose(part.mean().numpy(), expected, atol=1e-5)
    part.reset()
    assert (part.mean() == 0).all()


def test_only_more_independent_peers_count() -> None:
    part = Correlations(3, "raw")
    z = normal(1, 8, 3).requires_grad_()
    own = losses.feature_correlation(z)
    peers = torch.stack([2 * own, 0.5 * own, 3 * torch.eye(3) + own])
    traces = [r.trace().item() for r in peers]
    assert traces[0] > own.trace() > traces[1]
    term = part.term(z, peers)
    expected = sum(losses.mutual_understanding(z, peers[j]) for j in (0, 2))
    torch.testing.assert_close(term, expected)
    assert part.term(z, peers[1:2]).item() == 0
    assert part.term(z, torch.zeros(1, 3, 3)).item() == 0  # one that has seen no batch yet


@given(scales=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_at_unit_length_the_scale_of_a_feature_does_not_matter(scales: list[float]) -> None:
    z, peers = normal(6, 9, 4), torch.stack([torch.eye(4), losses.feature_correlation(unit_columns(normal(7, 9, 4)))])
    part, rescaled = Correlations(4), Correlations(4)
    torch.testing.assert_close(
        part.term(z, peers), rescaled.term(z * torch.tensor(scales), peers), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(part.mean(), rescaled.mean(), rtol=1e-4, atol=1e-5)
    assert part.mean().trace() <= 4 + 1e-5


def test_raw_features_race_each_other_and_features_of_unit_length_do_not() -> None:
    start = max(float(normal(8, 12, 4).norm()), float((1.5 * normal(9, 12, 4)).norm()))
    assert race("raw") > 3 * start
    assert race("unit") < 3 * start


def test_a_last_batch_smaller_than_n_has_no_correlations() -> None:
    part = Correlations(5)
    assert part.term(normal(2, 4, 5), torch.eye(5)[None]).item() == 0
    assert part.batches == 0


def test_following_the_term_brings_features_nearer_to_the_peer() -> None:
    """Gradient steps on Z alone: its R comes nearer to the R it is held against."""
    z = normal(3, 12, 4).requires_grad_()
    peer = 2 * losses.feature_correlation(normal(4, 12, 4))[None]
    part = Correlations(4, "raw")
    start = torch.dist(losses.feature_correlation(z), peer[0])
    for _ in range(60):
        (gradient,) = torch.autograd.grad(part.term(z, peer), z)
        with torch.no_grad():
            z -= 0.1 * gradient
    assert torch.dist(losses.feature_correlation(z), peer[0]) < 0.5 * start


def test_float32_features_of_a_collapsed_encoder_give_no_nan() -> None:
    part = Correlations(6)
    for z in (torch.ones(9, 6), torch.zeros(9, 6), normal(5, 9, 1).expand(9, 6).clone()):
        z.requires_grad_()
        (gradient,) = torch.autograd.grad(part.term(z, 3 * torch.eye(6).repeat(2, 1, 1)), z)
        assert gradient.isfinite().all()
    assert part.mean().isfinite().all()


def test_peers_are_drawn_anew_every_round_and_never_oneself() -> None:
    bank = {k: torch.full((1, 1), float(k)) for k in range(6)}
    drawn = [choose(bank, range(6), 2, seed=0, index=index) for index in range(8)]
    assert all(k not in rs.flatten().tolist() for received in drawn for k, rs in received.items())
    assert len({tuple(received[0].flatten().tolist()) for received in drawn}) > 1
    assert choose({0: torch.eye(1)}, [0], 0, seed=0, index=0) == {}
