"""LG-FedAvg: heads are averaged, feature extractors stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from torch import nn

from fedchoir.methods.lg_fedavg import head_state
from fedchoir.models.base import StagedModel

Make = Callable[..., FederationHarness]
State = dict[str, torch.Tensor]


def heads(s: FederationHarness) -> list[State]:
    return [{n: t.clone() for n, t in head_state(c.model).items()} for c in s.clients]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_the_global_head_is_the_mean_of_the_clients_heads(weighting: str, harness: Make, uneven: Path) -> None:
    s = harness("lg-fedavg", scenario=uneven, weighting=weighting, tested_head="own")
    s.run_rounds()
    sizes = [float(len(c.private)) if weighting == "size" else 1.0 for c in s.clients]
    assert weighting == "uniform" or len(set(sizes)) > 1
    own = heads(s)
    assert own[0].keys() == {"head.weight", "head.bias"}
    for name in own[0]:
        mean = sum(n * h[name].double() for n, h in zip(sizes, own, strict=True)) / sum(sizes)
        torch.testing.assert_close(s.method.server[f"head/{name}"].double(), mean, rtol=1e-5, atol=1e-6)


def test_all_clients_start_and_end_a_round_with_one_head_and_keep_their_extractors(harness: Make) -> None:
    s = harness("lg-fedavg", ("simple_cnn@4", "mlp", "simple_cnn@4"))
    initial = heads(s)
    assert equal(initial[1:], initial[:-1])
    (event,) = s.run_rounds()
    after = heads(s)
    assert equal(after[1:], after[:-1])
    assert not equal(after, initial)
    size = sum(t.nbytes for t in after[0].values())
    assert (event["bytes_up"], event["bytes_down"]) == (3 * size, 3 * size)
    one, _, other = s.weights()
    assert all(not torch.equal(one[n], other[n]) for n in one if n.startswith("backbone.") and one[n].dim() > 1)


def test_own_heads_are_tested_before_they_are_replaced(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("lg-fedavg", tested_head="own")
    (event,) = s.run_rounds()
    assert event["bytes_down"] == 0
    assert not equal(heads(s)[1:], heads(s)[:-1])
    sent = {n.removeprefix("head/"): t.clone() for n, t in s.method.server.items()}
    starts: list[State] = []
    local_update = type(s.method).local_update

    def spy(method: object, client: object) -> None:
        starts.append({n: t.clone() for n, t in head_state(client.model).items()})  # type: ignore[attr-defined]
        local_update(method, client)  # type: ignore[arg-type]

    monkeypatch.setattr(type(s.method), "local_update", spy)
    s.run_rounds()
    assert equal(starts, [sent] * 3)


def test_one_architecture_keeps_its_own_feature_width(harness: Make) -> None:
    s = harness("lg-fedavg", ("simple_cnn@4",), feature_dim=0)
    s.run_rounds(2)
    after = heads(s)
    assert equal(after[1:], after[:-1])
    assert not equal(s.weights()[1:], s.weights()[:-1])


def test_the_state_of_a_head_with_several_layers() -> None:
    head = nn.Sequential(nn.Dropout(), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    model = StagedModel("own", nn.Linear(4, 3), nn.Identity(), head, map_dim=0, feature_dim=3, num_classes=2)
    found = head_state(model)
    assert found.keys() == {n for n in model.state_dict() if n.startswith("head.")}
    assert len(found) == 9
    assert not any(t.requires_grad for t in found.values())


def test_it_can_train_with_differential_privacy(harness: Make) -> None:
    (event,) = harness("lg-fedavg", ("simple_cnn@4", "mlp"), dp_noise=1.0).run_rounds()
    assert all(value > 0 for value in event["privacy"]["epsilon"].values())
