"""Whole runs under label skew: exchanges, their cost, missing classes, many clients, accuracies on own shares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import events

from fedchoir import Experiment, Result, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import prepare
from fedchoir.models import build
from fedchoir.payload import Payload

CLASSES = 5
CROSS = ["fedexg", "pgct", "fedct"]


def saved_server(experiment: Experiment) -> dict[str, torch.Tensor]:
    folder = checkpoint.latest(experiment.out / "checkpoint")
    assert folder is not None
    return checkpoint.load(folder, "server")


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "moon"])
def test_without_an_exchange_it_is_its_base_method(base: str, skew: Callable[..., Experiment]) -> None:
    options = {"mu": 0.3} if base != "fedavg" else {}
    plain = skew(base, "plain", **options)
    wrapped = skew("fedct", "wrapped", base=base, base_options=options, exchanges=0)
    assert run(plain).accuracy == run(wrapped).accuracy
    one, two = saved_server(plain), saved_server(wrapped)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", CROSS)
def test_every_model_goes_to_exactly_one_other_client(
    name: str, skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: Any = methods.get(name)
    offered: dict[tuple[int, int], list[float]] = {}
    arrived: dict[tuple[int, int], list[float]] = {}
    offer, train = cls.offer, cls.cross_train
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
    monkeypatch.setattr(cls, "offer", spy_offer)
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
    assert all(torch.isfinite(t).all() for t in saved_server(experiment).values() if t.is_floating_point())
    assert 0 <= result.intra_avg <= 100


@pytest.mark.parametrize("name", CROSS)
def test_a_round_with_one_client_has_no_exchange(name: str, skew: Callable[..., Experiment]) -> None:
    experiment = skew(name, fraction=0.25, rounds=2)
    run(experiment)
    for event in events(experiment.out):
        assert len(event["clients"]) == 1
        assert all("cross_loss" not in losses for losses in event["losses"].values())
        assert event["messages"] == 2


def test_what_an_exchange_costs_is_counted(skew: Callable[..., Experiment]) -> None:
    model = build("simple_cnn@4", CLASSES, image_size=16)
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


@pytest.mark.parametrize(("name", "fraction", "count"), [("fedct", 0.3, 30), ("fedavg", 0.5, 50)])
def test_a_hundred_clients_of_which_some_take_part(
    name: str, fraction: float, count: int, skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    row = LocalEngine._row
    monkeypatch.setattr(LocalEngine, "_row", lambda *args: scored.append(len(args[2])) or row(*args))
    experiment = skew(name, rounds=1, clients=100, fraction=fraction, beta=0.5)
    result = run(experiment)
    assert len(events(experiment.out)[0]["clients"]) == count
    assert len(result.own) == len(result.accuracy) == 100
    assert all(0 <= value <= 100 for value in result.own)
    assert scored == [101]  # one model, on the global test set and on 100 shares of it


def test_a_starved_draw_ends_and_is_reported(skew: Callable[..., Experiment]) -> None:
    result = run(skew("fedavg", rounds=1, clients=200, beta=0.05, fraction=0.01))
    assert len(result.clients) == 200
    assert min(client["train"] for client in result.clients) >= 2
    assert any("moved to them" in note for note in result.notes)


def test_own_accuracies_are_those_of_the_global_model_on_each_share(skew: Callable[..., Experiment]) -> None:
    """The shares make up the test set, so their accuracies, weighted by size, are the global accuracy."""
    experiment = skew("fedct", rounds=1, beta=0.3)
    result: Result = run(experiment)
    (event,) = events(experiment.out)
    assert event["own"] == result.own
    shares = [len(test) for test in prepare(make_plan(experiment))[1].own_tests.values()]
    assert sum(shares) == 80
    weighted = sum(n * value for n, value in zip(shares, result.own, strict=True)) / sum(shares)
    assert weighted == pytest.approx(result.accuracy[0][0])
    assert len({*map(tuple, result.accuracy)}) == 1


def test_shares_of_the_tests_in_several_processes(skew: Callable[..., Experiment]) -> None:
    """The global test set and the clients' shares of it are scored in different processes."""
    alone, together = skew("fedct", "alone", rounds=1), skew("fedct", "together", rounds=1)
    run(alone), run(together.model_copy(update={"devices": ("cpu", "cpu", "cpu")}))
    one, two = ({k: v for k, v in events(e.out)[0].items() if k != "seconds"} for e in (alone, together))
    assert one == two


def test_without_shares_of_the_tests_there_is_no_own(play: Callable[..., Result]) -> None:
    assert play("fedavg", rounds=1).own == []
