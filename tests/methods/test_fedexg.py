"""FedExg and the exchange that PGCT and FedCT inherit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import events, states
from tests.methods.cross_training import CLASSES, MODEL, a_client, a_method, a_spec

from fedchoir import Experiment, methods, run
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.methods.fedct import FedCT
from fedchoir.methods.fedexg import BASES, FedExg
from fedchoir.models import build
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

CROSS = ["fedexg", "pgct", "fedct"]


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "moon"])
def test_without_an_exchange_it_is_its_base_method(base: str, skew: Callable[..., Experiment]) -> None:
    options = {"mu": 0.3} if base != "fedavg" else {}
    plain = skew(base, "plain", **options)
    wrapped = skew("fedct", "wrapped", base=base, base_options=options, exchanges=0)
    assert run(plain).accuracy == run(wrapped).accuracy
    one, two = states(plain)["server"], states(wrapped)["server"]
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", CROSS)
def test_every_model_goes_to_exactly_one_other_client(
    name: str, skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: Any = methods.get(name)
    offered: dict[tuple[int, int], list[float]] = {}
    arrived: dict[tuple[int, int], list[float]] = {}
    offer, train = cls.share_model, cls.cross_train
    serial: dict[str, int] = {}

    def key(state: Any) -> list[float]:
        return next(t for n, t in state.items() if n.startswith("head.")).flatten().tolist()

    def spy_offer(self: Any, client: Client) -> Payload:
        number = serial[f"o{client.index}"] = serial.get(f"o{client.index}", -1) + 1
        payload = offer(self, client)
        offered[number, client.index] = key(payload.under("weights"))
        return payload

    def spy_train(self: Any, client: Client, received: Payload | None) -> None:
        number = serial[f"t{client.index}"] = serial.get(f"t{client.index}", -1) + 1
        arrived[number, client.index] = key(received.under("weights"))
        train(self, client, received)

    spy_offer.__sends__ = offer.__sends__  # type: ignore[attr-defined]
    monkeypatch.setattr(cls, "share_model", spy_offer)
    monkeypatch.setattr(cls, "cross_train", spy_train)
    run(skew(name, rounds=2, exchanges=2))
    assert offered.keys() == arrived.keys() == {(n, k) for n in range(4) for k in range(4)}
    for n in range(4):
        sources = [next(k for k in range(4) if offered[n, k] == arrived[n, target]) for target in range(4)]
        assert sorted(sources) == [0, 1, 2, 3]
        assert all(source != target for target, source in enumerate(sources))


@pytest.mark.parametrize("name", CROSS)
def test_a_class_of_nobody_or_of_one_client_breaks_nothing(
    name: str, skewed: Path, skew: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Clients 0-2 share classes 0 and 1; client 3 alone has class 2; nobody has class 3 or the nameless fifth."""
    with np.load(skewed / "cifar10.npz") as stored:
        labels = stored["train_y"]
    where = [np.flatnonzero(labels == c).tolist() for c in range(4)]
    parts = [where[0][:20] + where[1][:10], where[0][20:40], where[1][20:50], where[2][:30]]
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(parts))
    experiment = skew(name, partition="file", partition_file=str(path), rounds=2)
    result = run(experiment)
    for event in events(experiment.out):
        assert not event["left_out"]
        assert all(np.isfinite(list(losses.values())).all() for losses in event["losses"].values())
        assert all("cross_loss" in losses for losses in event["losses"].values())
    assert all(torch.isfinite(t).all() for t in states(experiment)["server"].values() if t.is_floating_point())
    assert 0 <= result.intra_avg <= 100


@pytest.mark.parametrize("name", CROSS)
def test_a_round_with_one_client_has_no_exchange(name: str, skew: Callable[..., Experiment]) -> None:
    experiment = skew(name, fraction=0.25, rounds=2)
    run(experiment)
    for event in events(experiment.out):
        assert len(event["clients"]) == 1
        assert all("cross_loss" not in losses for losses in event["losses"].values())
        assert event["messages"] == 2


def test_rounds_that_count_interactions_are_fewer_averagings_with_a_note(skew: Callable[..., Experiment]) -> None:
    result = run(skew("fedexg", rounds=4, rounds_unit="interaction"))
    assert result.rounds == 2
    assert "rounds count interactions: 2 averagings, each after N_e = 1" in result.notes


def test_what_an_exchange_costs_is_counted(skew: Callable[..., Experiment]) -> None:
    model = build("simple_cnn@4", CLASSES, InputSpec.image(16))
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    prototypes = CLASSES * model.feature_dim * 4
    for name, exchanges, extra in (("fedexg", 2, 0), ("fedct", 1, prototypes + CLASSES)):
        experiment = skew(name, f"{name}{exchanges}", rounds=2, exchanges=exchanges)
        run(experiment)
        first, second = events(experiment.out)
        assert first["messages"] == 4 * (exchanges + 1)
        assert first["bytes_up"] == 4 * (weights + exchanges * (weights + extra))
        down = exchanges * (weights + extra + 8 + (prototypes + CLASSES if extra else 0))
        assert first["bytes_down"] == 4 * down
        assert second["bytes_down"] == 4 * (down + weights)


@pytest.mark.parametrize("base", list(BASES))
def test_every_base_changes_local_training_alone(base: str) -> None:
    """So phase I can be its ``local_update``: payloads and averaging stay FedAvg's."""
    for function in ("round", "upload", "download", "global_weights", "extra_modules", "setup"):
        assert getattr(BASES[base], function) is getattr(BASES["fedavg"], function)


def test_options_of_the_base_are_checked() -> None:
    values: dict[str, Any] = {"method": "fedct", "scenario": "cifar10", "device": "cpu"}
    for options, message in (({"mu": -1}, "mu"), ({"nu": 1}, "nu"), ({"local_lr": 1.0}, "whole run")):
        with pytest.raises(UsageError, match=f"base_options = .*{message}"):
            run(Experiment(**values, settings={"base": "moon", "base_options": options}))


def test_each_exchange_sees_the_data_in_a_new_order(monkeypatch: pytest.MonkeyPatch) -> None:
    method = a_method(FedExg, exchanges=2)
    client = a_client(method)
    client.phase = "cross_train"
    firsts = []
    monkeypatch.setattr(client, "train", lambda loss, *, epochs, first, phase: firsts.append((epochs, first)))
    for number in (0, 1, 2):
        weights = {f"weights/{n}": t for n, t in client.model.state_dict().items()}
        method.cross_train(client, Payload(weights, scalars={"exchange": number}))
    assert firsts == [(1, 0), (1, 1), (1, 2)]
    method.cross_train(client, None)  # no model arrived: it keeps its own and does not train
    assert len(firsts) == 3


def test_heterogeneous_clients_are_refused() -> None:
    clients = tuple(ClientInfo(f"c{k}", model, 10, 10, "global") for k, model in enumerate(("mlp", MODEL)))
    spec = replace(a_spec(), clients=clients)
    with pytest.raises(UsageError, match="fedct averages weights, so all clients need one architecture"):
        FedCT(FedCT.Params(), spec)
