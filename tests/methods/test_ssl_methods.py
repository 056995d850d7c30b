"""The self-supervised methods in whole runs, and what FedU and FedEMA do with the average."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal, events

from fedchoir import Experiment, Result, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.methods.fedbyol import blend, divergence
from fedchoir.methods.ssl.objectives import online_parameters
from fedchoir.models import build

Play = Callable[..., Result]
Small = Callable[..., Experiment]
N = 8  # dim of the small runs


def weights(experiment: Experiment, client: int = 0) -> dict[str, torch.Tensor]:
    state = checkpoint.load(checkpoint.latest(experiment.out / "checkpoint"), f"client-{client:05d}")
    return {name: t for name, t in state.items() if not name.startswith(("parts/correlations", "memory/"))}


def test_fedfoa_is_byol_until_it_listens(small: Small) -> None:
    """During the warm-up, and with λ = 0, correlations are shared but not one weight differs; then they do."""
    alone, warm = small("byol", "alone", rounds=2), small("fedfoa", "warm", rounds=2, settings={"t_warm": 2})
    deaf = small("fedfoa", "deaf", rounds=2, settings={"foa_weight": 0.0})
    heeds = small("fedfoa", "heeds", rounds=2, settings={"foa_weight": 1.0})
    for experiment in (alone, warm, deaf, heeds):
        run(experiment)
    assert equal(weights(alone), weights(warm))
    assert equal(weights(alone), weights(deaf))
    assert not all(equal(weights(alone, k), weights(heeds, k)) for k in range(3))


def test_one_matrix_a_round_goes_up_and_the_others_come_down(small: Small) -> None:
    experiment = small("fedfoa", rounds=3)
    run(experiment)
    first, second, _ = events(experiment)
    assert first["bytes_up"] == second["bytes_up"] == 3 * N * N * 4
    assert first["bytes_down"] == 0
    assert second["bytes_down"] == 3 * 2 * N * N * 4
    assert second["messages"] == 3


def test_events_tell_the_distance_of_correlations_and_the_nearest_neighbours(small: Small) -> None:
    experiment = small("fedfoa", rounds=2)
    run(experiment)
    for event in events(experiment):
        distance = torch.tensor(event["measures"]["correlation_distance"])
        assert distance.shape == (3, 3)
        assert torch.equal(distance, distance.T)
        assert (distance.diagonal() == 0).all()
        assert (distance + torch.eye(3) > 0).all()
        assert all(0 <= losses["knn"] <= 100 for losses in event["losses"].values())


def test_the_probe_is_fitted_only_where_it_is_asked_for(small: Small) -> None:
    experiment = small("byol", rounds=6, settings={"evaluate_every": 2, "local_epochs": 0})
    run(experiment)
    assert [event["accuracy"] is not None for event in events(experiment)] == [False, True, False, True, True, True]


def test_a_random_encoder_is_byol_without_epochs(play: Play) -> None:
    result = play("byol", rounds=1, settings={"local_epochs": 0})
    assert result.bytes_up == 0
    assert 0 < result.intra_avg <= 100


@pytest.mark.parametrize("name", ["fedbyol", "fedu", "fedema", "fedmd-ssl"])
def test_fedfoa_stacks_on_top(name: str, small: Small) -> None:
    plain, stacked = small(name, "plain", rounds=2), small(name, "stacked", rounds=2, settings={"foa": True})
    extra = run(stacked).bytes_up - run(plain).bytes_up
    assert extra == 2 * 3 * N * N * 4
    assert "correlation_distance" in events(stacked)[-1]["measures"]
    assert events(plain)[-1]["measures"] == {}


@pytest.mark.parametrize("objective", ["simsiam", "simclr"])
@pytest.mark.parametrize("name", ["fedfoa", "fedema"])
def test_every_objective_federates(name: str, objective: str, play: Play) -> None:
    assert play(name, rounds=2, settings={"objective": objective, "foa": True}).rounds == 2


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_both_solvers_lead_to_one_place(solver: str, small: Small) -> None:
    auto, other = small("fedfoa", "auto", rounds=2), small("fedfoa", solver, rounds=2, settings={"solver": solver})
    run(auto), run(other)
    for name, t in weights(auto).items():
        torch.testing.assert_close(weights(other)[name], t, rtol=1e-3, atol=1e-4, msg=name)


def test_fedbyol_goes_on_from_the_average_target_too(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = methods.get("fedbyol")
    download = cls.download
    calls = 0

    def spy(self: Any, client: Client, received: Any) -> None:
        nonlocal calls
        download(self, client, received)
        calls += 1
        assert equal(client.model.state_dict(), received.under("weights"))
        for name in ("calibration", "projector", "predictor"):
            assert equal(client.modules[name].state_dict(), received.under(name))
        slow = list(client.modules["target"].parameters())
        assert all(torch.equal(a, b) for a, b in zip(slow, online_parameters(client), strict=True))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedbyol", rounds=2))
    assert calls == 3


@pytest.mark.parametrize(("threshold", "own"), [(0.0, True), (1e6, False)])
def test_fedu_keeps_its_predictor_where_it_diverged(
    threshold: float, own: bool, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    cls = methods.get("fedu")
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        before = {n: t.clone() for n, t in client.modules["predictor"].state_dict().items()}
        target = {n: t.clone() for n, t in client.modules["target"].state_dict().items()}
        download(self, client, received)
        assert equal(client.model.state_dict(), received.under("weights"))
        assert equal(client.modules["target"].state_dict(), target)
        after = client.modules["predictor"].state_dict()
        kept.append((equal(after, before), equal(after, received.under("predictor"))))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedu", rounds=2, settings={"threshold": threshold}))
    assert kept == [(own, not own)] * 3


def test_fedema_keeps_tau_of_its_own_at_first(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    cls = methods.get("fedema")
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        name = next(n for n, p in client.model.named_parameters() if p.dim() > 1)
        own, average = client.model.state_dict()[name].clone(), received.under("weights")[name]
        download(self, client, received)
        mixed = client.model.state_dict()[name]
        shares.append((client.index, client.round, ((mixed - average).norm() / (own - average).norm()).item()))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedema", rounds=3, settings={"tau": 0.7}))
    assert [share for _, index, share in shares if index == 1] == pytest.approx([0.7] * 3, abs=1e-4)
    later = [share for _, index, share in shares if index == 2]
    assert all(0 < share <= 1 for share in later)
    assert later != pytest.approx([0.7] * 3, abs=1e-3)


@pytest.mark.parametrize("name", ["fedu", "fedema"])
def test_who_has_not_trained_yet_takes_the_average_as_it_is(
    name: str, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three clients one takes part in a round: the others come later, with weights that nobody has trained."""
    taken: dict[int, list[bool]] = {}
    cls = methods.get(name)
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        download(self, client, received)
        whole = equal(client.model.state_dict(), received.under("weights"))
        taken.setdefault(client.index, []).append(
            whole and equal(client.modules["predictor"].state_dict(), received.under("predictor"))
        )

    monkeypatch.setattr(cls, "download", spy)
    experiment = small(name, rounds=8, settings={"fraction": 0.34, **({"threshold": 0.0} if name == "fedu" else {})})
    run(experiment)
    names = [client["name"] for client in json.loads((experiment.out / "result.json").read_text())["clients"]]
    (first,) = events(experiment)[0]["clients"]
    late = [whole for k, whole in taken.items() if names[k] != first]
    assert late
    assert all(whole[0] for whole in late)
    assert not all(again for whole in late for again in whole[1:])  # whoever has trained keeps something


def test_blend_and_divergence_by_hand() -> None:
    torch.manual_seed(0)
    one, two = build("mlp@3", 2, image_size=16), build("mlp@3", 2, image_size=16)
    layers = [(a, b) for (n, a), b in zip(one.named_parameters(), two.parameters(), strict=True) if "neck" in n]
    expected = sum((a - b).pow(2).sum().sqrt() for a, b in layers if a.dim() > 1) / 2
    torch.testing.assert_close(divergence(one, two.state_dict()), expected)
    norm, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    other.weight.data.fill_(3), other.num_batches_tracked.fill_(7)
    blend(norm, other.state_dict(), torch.tensor(0.25))
    assert norm.weight.tolist() == [1.5, 1.5]
    assert norm.num_batches_tracked == 0
    blend(norm, other.state_dict(), torch.tensor(1.0))
    assert equal(norm.state_dict(), other.state_dict())


def test_public_features_travel_in_the_common_width(small: Small) -> None:
    experiment = small("fedmd-ssl", rounds=1)
    result = run(experiment)
    assert result.bytes_up == 3 * 40 * N * 4  # three clients, 40 public images


def test_half_precision_leaves_the_factorisations_in_full(small: Small) -> None:
    experiment = small("fedfoa", rounds=2, precision="bf16")
    run(experiment)
    distance = torch.tensor(events(experiment)[-1]["measures"]["correlation_distance"])
    assert distance.isfinite().all()
    assert (distance + torch.eye(3) > 0).all()
