"""Truncated SVDs of updates: the least rank, what is cut off, and payloads that declare any rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.core.aggregation import Mean
from fedchoir.methods.low_rank import RestoredMean, compress, declared_update, packed, restored, unpacked, updated
from fedchoir.payload import Payload, check, zero_payload


def matrix(seed: int, p: int = 12, q: int = 20) -> torch.Tensor:
    """A matrix whose singular values fall quickly."""
    g = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, -3, min(p, q), dtype=torch.float64)
    left, right = (torch.randn(n, min(p, q), generator=g, dtype=torch.float64) for n in (p, q))
    return left * scale @ right.T


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.95, 0.98])
def test_the_rank_is_the_least_that_keeps_the_energy(energy: float) -> None:
    x = matrix(0)
    sigma = np.linalg.svd(x.numpy(), compute_uv=False)
    rank = next(k for k in range(len(sigma) + 1) if (sigma[:k] ** 2).sum() >= energy * (sigma**2).sum())
    factors = compress(x, energy)
    assert (factors["left"].shape, factors["right"].shape) == ((12, rank), (rank, 20))
    lost = (restored(factors) - x).square().sum().item()
    assert lost == pytest.approx((sigma[rank:] ** 2).sum(), rel=1e-6)
    assert lost <= (1 - energy) * x.square().sum().item()


@given(seed=st.integers(0, 1000), p=st.integers(1, 9), q=st.integers(1, 9), energy=st.floats(0.1, 1.0))
@settings(max_examples=30, deadline=None)
def test_factors_are_never_larger_than_the_matrix(seed: int, p: int, q: int, energy: float) -> None:
    x = matrix(seed, p, q)
    factors = compress(x, energy)
    assert sum(t.numel() for t in factors.values()) <= p * q
    assert (restored(factors) - x).square().sum() <= (1 - energy + 1e-9) * x.square().sum() + 1e-12


def test_whole_matrices_zeros_and_numbers_that_are_not_finite() -> None:
    x = matrix(1)
    assert torch.equal(restored(compress(x, 1.0)), x)  # its factors would be larger
    assert sum(t.numel() for t in compress(torch.zeros(4, 5), 0.95).values()) == 0
    assert torch.equal(restored(compress(torch.zeros(4, 5), 0.95)), torch.zeros(4, 5))
    assert restored(compress(torch.full((4, 5), torch.nan), 0.95)).isnan().all()


def state(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(8, 3, 5, 5, generator=g),
        "conv.bias": torch.randn(8, generator=g),
        "norm.num_batches_tracked": torch.tensor(seed),
        "fc.weight": matrix(seed, 6, 8).float(),
    }


def flat(update: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: t.flatten(1) if t.dim() > 1 else t for n, t in update.items()}


def test_an_update_survives_packing_and_satisfies_its_declaration() -> None:
    start, update = state(0), state(1)
    payload = packed(flat(update), 1.0)
    check(payload, declared_update(start), {})
    check(packed(flat(update), 0.6), declared_update(start), {})
    assert packed(flat(update), 0.6).nbytes < payload.nbytes
    result = updated(start, unpacked(payload).under("update"))
    for name, t in start.items():
        torch.testing.assert_close(result[name], t + update[name] if "weight" in name else update[name])


def test_any_rank_that_is_declared_gives_a_matrix() -> None:
    """A client may choose r and n: the server's mean is defined for all of them."""
    fields = declared_update({"w": torch.zeros(4, 5)})
    mean = RestoredMean(Mean([1.0, 1.0, 2.0]))
    for k, (r, n) in enumerate([(0, 0), (9, 3), (1, 0)]):
        factors = {"left": torch.ones(4, r), "right": torch.ones(r, 5), "full": torch.ones(n, 4, 5)}
        payload = Payload({f"update/w/{name}": t for name, t in factors.items()})
        check(payload, fields, {})
        mean.add(k, [payload])
    (result,) = mean.result()
    assert torch.equal(result["update/w"], torch.full((4, 5), (0 + 12 + 2 * 1) / 4))
    zeros = unpacked(zero_payload(fields, {}))
    assert torch.equal(zeros["update/w"], torch.zeros(4, 5))
