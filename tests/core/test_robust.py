"""Robust rules against references, and in attacked runs: a hostile client does less harm with a rule than without."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.helpers import events

from fedchoir import Experiment, Result, run
from fedchoir.core.aggregation import ByName, Gather, Mean, mean
from fedchoir.core.robust import Robust, corrupted, defended, flipped_labels, krum, median, trimmed_mean
from fedchoir.payload import Payload

RULES = ["median", "trimmed_mean", "krum"]


@given(count=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_median_and_trimmed_mean_against_numpy_and_scipy(count: int, seed: int) -> None:
    x = torch.randn((count, 3, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    np.testing.assert_allclose(median(x), np.median(x, axis=0))
    bad = (count - 1) // 2
    np.testing.assert_allclose(trimmed_mean(x, bad), stats.trim_mean(x, bad / count, axis=0), atol=1e-12)


def test_krum_keeps_the_cluster_by_its_definition() -> None:
    x = torch.randn((8, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[[2, 5]] += 40
    scores = []
    for i in range(8):
        distances = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(8) if j != i)
        scores.append(sum(distances[: 8 - 2 - 2]))
    assert krum(x, 2) == sorted(int(i) for i in np.argsort(scores)[:6])
    assert set(krum(x, 2)).isdisjoint({2, 5})


@pytest.mark.parametrize("rule", RULES)
def test_whatever_one_client_sends_the_result_is_among_the_honest_payloads(rule: str) -> None:
    honest = [torch.randn((4, 3), generator=torch.Generator().manual_seed(k)) for k in range(4)]
    low, high = torch.stack(honest).amin(0), torch.stack(honest).amax(0)
    for lie in (1e6, -1e6):
        aggregator = Robust(rule, 0.2)  # type: ignore[arg-type]
        for k, x in enumerate([*honest, torch.full((4, 3), lie)]):
            aggregator.add(k, [Payload(x=x, n=torch.tensor(k), scalars={"s": float(k)})])
        (got,) = aggregator.result()
        assert got["x"].dtype == torch.float32
        assert got["n"].dtype == torch.int64
        assert bool(((low <= got["x"]) & (got["x"] <= high)).all())


def test_only_means_are_replaced() -> None:
    assert isinstance(defended(Mean(), "median", 0.2), Robust)
    assert isinstance(defended(Mean([1.0, 2.0]), "krum", 0.2), Robust)
    assert isinstance(defended(Mean(), "mean", 0.2), Mean)
    assert isinstance(defended(Gather(), "median", 0.2), Gather)
    both = defended(ByName({"a": mean, "b": Gather}), "median", 0.2)
    assert isinstance(both, ByName)
    assert isinstance(both.aggregators["a"], Robust)
    assert isinstance(both.aggregators["b"], Gather)


def test_attacks_change_the_floating_point_tensors() -> None:
    payload = Payload(x=torch.tensor([1.0, -2.0, 3.0]), n=torch.tensor([4]), scalars={"s": 1.0})
    draw = torch.Generator().manual_seed(0)
    (flip,) = corrupted([payload], "sign_flip", draw)
    assert flip["x"].tolist() == [-1.0, 2.0, -3.0]
    assert flip["n"].tolist() == [4]
    (noisy,) = corrupted([payload], "noise", draw)
    assert float((noisy["x"] - payload["x"]).abs().mean()) > 5
    (bad,) = corrupted([payload], "nan", draw)
    assert bool(bad["x"].isnan().all())


@pytest.mark.parametrize("rule", RULES)
def test_a_robust_rule_keeps_the_accuracy_that_an_attack_destroys(rule: str, play: Callable[..., Result]) -> None:
    """FedAvg with one client of three that sends its weights with the opposite sign."""
    attacked = {"attack": "sign_flip", "attackers": 1, "weighting": "uniform"}
    plain = play("fedavg", "plain", rounds=2)
    harmed = play("fedavg", "harmed", rounds=2, settings=attacked)
    saved = play("fedavg", "saved", rounds=2, settings={**attacked, "robust": rule})
    assert saved.intra_avg > harmed.intra_avg + 5
    assert plain.intra_avg > harmed.intra_avg + 5


def test_a_client_that_sends_nan_is_left_out_without_any_rule(
    small: Callable[..., Experiment],
) -> None:
    experiment = small("fedmd", rounds=1, settings={"attack": "nan", "attackers": 1})
    result = run(experiment)
    (event,) = events(experiment)
    assert {out["client"] for out in event["left_out"]} == {result.clients[-1]["name"]}
    assert math.isfinite(result.intra_avg)


def test_label_flips_change_the_private_labels_and_no_payload() -> None:
    payload = Payload(x=torch.tensor([1.0, -2.0]))
    (sent,) = corrupted([payload], "label_flip", torch.Generator())
    assert torch.equal(sent["x"], payload["x"])
    labels = torch.tensor([0, 1, 3])
    assert flipped_labels(labels, 4).tolist() == [3, 2, 0]
    assert torch.equal(flipped_labels(flipped_labels(labels, 4), 4), labels)
