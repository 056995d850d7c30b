"""FedAvg: averaging, the evaluated model, and methods that add one term to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.payload import Payload

CNN = ("simple_cnn@4",)
BATCHNORM = ("resnet10@4",)
Make = Callable[..., FederationHarness]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_fedavg_averages_weights_and_buffers(weighting: str, harness: Make, uneven: Path) -> None:
    s = harness("fedavg", BATCHNORM, weighting=weighting, scenario=uneven)
    s.run_rounds()
    parts = s.weights()
    sizes = [len(c.private) for c in s.clients]
    assert len(set(sizes)) > 1
    shares = np.array(sizes if weighting == "size" else [1, 1, 1]) / sum(sizes if weighting == "size" else [1, 1, 1])
    merged = s.method.global_weights()
    assert any("running_mean" in name for name in merged)
    for name, tensor in merged.items():
        expected = sum(w * part[name].double() for w, part in zip(shares, parts, strict=True))
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert tensor.item() == round(expected.item())


def test_a_round_starts_from_the_global_model(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedavg", BATCHNORM)
    s.run_rounds()
    merged = s.method.global_weights()
    starts = []
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.append(c.snapshot()), local_update(m, c))[1]
    )
    s.run_rounds()
    assert equal(starts, [merged] * 3)


def test_eval_model_own_tests_the_clients_models(harness: Make) -> None:
    tests = {tested: harness("fedavg", BATCHNORM, eval_model=tested, local_lr=0.05) for tested in ("global", "own")}
    one, own = (s.run_rounds(2)[-1] for s in tests.values())
    assert one["losses"] == own["losses"]  # the evaluated model does not affect training
    assert one["accuracy"][0] == one["accuracy"][1] == one["accuracy"][2]
    s = tests["own"]
    assert not equal(s.weights(), s.weights()[1:] + s.weights()[:1])
    again = [s.method.evaluate(c, s.engine._tests) for c in s.clients]
    assert own["accuracy"] == [[score.accuracy for score in row] for row in again]
    merged = s.engine.evaluate(dict(Payload(s.method.server).under("weights")), 1, "accuracy")
    assert one["accuracy"] == [[score.accuracy for score in found.tests] for found in merged]


@pytest.mark.parametrize(
    ("method", "off"),
    [("fedprox", {"mu": 0.0}), ("moon", {"mu": 0.0}), ("fedproc", {"alpha": 0.0}), ("fedrs", {"alpha": 1.0})],
)
def test_without_its_term_a_method_is_fedavg(method: str, off: dict[str, Any], harness: Make, uneven: Path) -> None:
    plain, switched, on = (
        harness(name, CNN, scenario=uneven, **settings)
        for name, settings in (("fedavg", {}), (method, off), (method, {}))
    )
    for s in (plain, switched, on):
        s.run_rounds(2)
    assert equal(plain.weights(), switched.weights())
    assert not equal(plain.weights(), on.weights())


@pytest.mark.parametrize("method", ["moon", "fedproc", "fedrs", "fedprox"])
def test_classes_that_a_client_or_everyone_lacks_break_nothing(method: str, harness: Make, uneven: Path) -> None:
    s = harness(method, CNN, rounds=3, scenario=uneven, fraction=0.67)
    events = s.run_rounds(3)
    assert all(np.isfinite(list(e["losses"][c].values())).all() for e in events for c in e["clients"])
    assert all(t.isfinite().all() for weights in s.weights() for t in weights.values())
    assert not any(e["left_out"] for e in events)
