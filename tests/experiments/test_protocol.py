"""Protocols in real runs: a held-out domain, rotated models, unequal sizes, partial participation, late joiners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import MIXED
from tests.helpers import Stop, StopAfter, assert_same, events, numbers, run_folder, states

from fedchoir import Experiment, Result, run
from fedchoir.engines.local.state_cache import state_name
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.utils.errors import UsageError

Small = Callable[..., Experiment]
Play = Callable[..., Result]
METHODS = ("fedavg", "fccl+")
CLIENTS = ["green", "red", "white"]  # in the order of the files


def names(result: Result) -> list[str]:
    return [client["name"] for client in result.clients]


def models(result: Result) -> list[str]:
    return [client["model"] for client in result.clients]


# -- a held-out domain -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_result_shows_the_unseen_domain(method: str, small: Small) -> None:
    experiment = small(method, settings={"held_out": "red"})
    result = run(experiment)
    assert (names(result), result.tests) == (["green", "white"], CLIENTS)
    assert {client for event in events(experiment) for client in event["clients"]} == {"green", "white"}
    column = [row[1] for row in result.accuracy]
    summary = result.unseen["red"]
    assert summary.clients == column
    assert result.unseen_avg == summary.mean == pytest.approx(sum(column) / 2)
    assert result.inter[0] == pytest.approx((result.accuracy[0][1] + result.accuracy[0][2]) / 2)
    assert result.metrics_summary["auroc"]["unseen"].mean is not None
    assert result.unseen_avg > 40  # of four classes: it has learned something that holds elsewhere
    last = events(experiment)[-1]
    assert last["unseen_avg"] == pytest.approx(sum(row[1] for row in last["accuracy"]) / 2)
    written = json.loads((run_folder(experiment) / "result.json").read_text())
    assert written["unseen"]["red"]["clients"] == column
    assert written["settings"]["held_out"] == "red"


def test_without_a_held_out_domain_nothing_is_unseen(small: Small) -> None:
    experiment = small("solo", rounds=1)
    run(experiment)
    assert "unseen" not in json.loads((run_folder(experiment) / "result.json").read_text())
    assert "unseen_avg" not in events(experiment)[0]


def test_the_others_keep_their_models_and_epochs(small: Small) -> None:
    settings = {"held_out": "green", "local_epochs": (3, 2, 1)}
    method, scenario, _ = prepare(make_plan(small("fccl+", settings=settings)))
    assert [client.model for client in method.spec.clients] == list(MIXED[1:])
    assert [method.params.epochs_of(k) for k in range(2)] == [2, 1]
    assert [client.name for client in scenario.clients] == CLIENTS[1:]
    method, _, _ = prepare(make_plan(small("fccl+", settings={**settings, "clients": 6})))
    assert [client.name for client in method.spec.clients] == ["red-0", "red-1", "white-0", "white-1"]
    assert [client.model for client in method.spec.clients] == [MIXED[k % 3] for k in range(2, 6)]


# -- rotated models ----------------------------------------------------------------------------------------------------


def test_models_are_permuted_by_the_seed(small: Small) -> None:
    def of(seed: int, **settings: Any) -> list[str]:
        spec = prepare(make_plan(small("fccl+", seed=seed, settings={"rotate": True, **settings})))[0].spec
        return [client.model for client in spec.clients]

    drawn = [of(seed) for seed in range(6)]
    assert all(Counter(each) == Counter(MIXED) for each in drawn)  # a permutation
    assert drawn[:3] == drawn[3:] == [of(seed) for seed in range(3)]
    assert drawn[0] != list(MIXED)
    assert all(set(column) == set(MIXED) for column in zip(*drawn[:3], strict=True))  # each client has each model once
    less = [of(seed, held_out="red") for seed in range(2)]
    assert less == [[MIXED[2], MIXED[0]], [MIXED[0], MIXED[2]]]  # among those that take part


def test_a_run_records_the_rotated_models(play: Play) -> None:
    result = play("fccl+", rounds=1, settings={"rotate": True})
    assert (names(result), models(result)) == (CLIENTS, [MIXED[2], *MIXED[:2]])


# -- sizes and participation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_unequal_clients_and_partial_participation(method: str, small: Small) -> None:
    settings = {"clients": 6, "size_skew": 1.0, "fraction": 0.5}
    experiment = small(method, settings=settings)
    result = run(experiment)
    sizes = {client["name"]: client["train"] for client in result.clients}
    assert [sizes[f"{name}-0"] + sizes[f"{name}-1"] for name in CLIENTS] == [48, 48, 48]
    assert len(set(sizes.values())) > 2
    assert [len(event["clients"]) for event in events(experiment)] == [3, 3, 3]
    again = small(method, "again", settings=settings)
    run(again)
    assert_same(experiment, again)


# -- late joiners ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "fednova"])
def test_a_client_that_joins_late_is_neither_trained_nor_evaluated_before(method: str, small: Small) -> None:
    settings = {"join_late": "red:3", "pretrain_epochs": 1, "validation": 0.25}
    late, absent = small(method, rounds=4, settings=settings), small(method, "absent", rounds=4, settings=settings)
    result = run(late)
    found = events(late)
    assert [event["clients"] for event in found] == [["green", "white"]] * 2 + [CLIENTS] * 2
    assert [event["accuracy"][1] is None for event in found] == [True, True, False, False]
    assert [event["validation"][1] is None for event in found] == [True, True, False, False]
    assert not any("red" in event["losses"] for event in found[:2])
    assert "pretrain_loss" in found[2]["losses"]["red"]
    assert names(result) == CLIENTS
    assert {best.client: best.round for best in result.best}["red"] >= 2
    with pytest.raises(Stop):
        run(absent, observers=[StopAfter(1)])
    assert state_name(1) not in states(absent)  # nothing of it exists before it joins


@pytest.mark.parametrize("method", METHODS)
def test_the_others_do_not_notice_a_client_that_has_not_joined(method: str, small: Small) -> None:
    two = {
        name: small(method, name, rounds=3, settings={"join_late": f"white:{r}"}) for name, r in (("2", 2), ("3", 3))
    }
    for experiment in two.values():
        run(experiment)
    without = ("seconds", "accuracy", "intra_avg", "inter_avg", "metrics", "metrics_ci")
    first, second = (numbers(experiment, without=without) for experiment in two.values())
    assert first[0] == second[0]
    assert first[1] != second[1]  # here the one has joined
    scores = [events(experiment)[0]["accuracy"] for experiment in two.values()]
    assert scores[0] == scores[1]
    assert scores[0][2] is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("last", [0, 1])
def test_a_run_with_late_joiners_resumes_exactly(method: str, last: int, small: Small) -> None:
    settings = {"join_late": "red:2,white:3", "clients": 3, "fraction": 0.7}
    straight, stopped = (small(method, name, settings=settings) for name in ("straight", "stopped"))
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(last)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


@pytest.mark.parametrize("method", METHODS)
def test_all_protocols_together_are_the_same_in_several_processes(method: str, small: Small) -> None:
    settings = {"held_out": "green", "clients": 6, "size_skew": 0.8, "join_late": "red-1:2", "validation": 0.3}
    settings |= {"rotate": True} if method == "fccl+" else {}
    local = small(method, "local", rounds=2, settings=settings)
    distributed = small(method, "distributed", rounds=2, settings=settings, devices=("cpu", "cpu"))
    run(local)
    run(distributed)
    assert_same(local, distributed)
    assert all(one["unseen_avg"] is not None for one in events(local))


def test_label_skew_with_unequal_sizes_and_late_joiners(small: Small, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {f"{s}_x": rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8) for s, n in (("train", 80), ("test", 40))}
    np.savez(tmp_path / "cifar10.npz", **images, train_y=np.arange(80) % 10, test_y=np.arange(40) % 10)
    settings = {"partition": "iid", "size_skew": 1.0, "clients": 4, "join_late": "client-2:2"}
    experiment = small("fedavg", scenario="cifar10", data_root=tmp_path, rounds=2, settings=settings)
    result = run(experiment)
    sizes = [client["train"] for client in result.clients]
    assert sum(sizes) == 80
    assert max(sizes) > 1.5 * min(sizes)
    assert all((event["own"][2] is None) == (r == 0) for r, event in enumerate(events(experiment)))


# -- what makes no sense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fccl+", {"held_out": "blue"}, r"held_out = 'blue' is not possible: the domains of \S+ are green, red, white"),
        ("fedavg", {"rotate": True}, "rotate = True is not possible: all clients have one model, resnet10@4; give"),
        ("fccl+", {"size_skew": 1.0}, "size_skew = 1 is not possible: no two clients share a domain"),
        ("fccl+", {"join_late": "red:4"}, "join_late = 'red:4' is not possible: the run has 3 rounds; .* from 2 to 3"),
        ("fccl+", {"join_late": "blue:2"}, "join_late: there is no client 'blue'; the clients are green, red, white"),
        (
            "fccl+",
            {"join_late": "green:2", "held_out": "green"},
            "join_late: there is no client 'green'; .* red, white",
        ),
        ("fccl+", {"join_late": "red:2,green:2,white:3"}, "join_late is not possible for all clients"),
        ("fccl", {"join_late": "red:2", "own_logits": "previous"}, "own_logits = 'previous' .* with join_late"),
    ],
)
def test_what_makes_no_sense_is_one_line(method: str, settings: dict[str, Any], line: str, small: Small) -> None:
    experiment = small(method, settings=settings)
    with pytest.raises(UsageError, match=line) as error:
        run(experiment)
    assert "\n" not in str(error.value)
    assert not run_folder(experiment).exists()


def test_a_secure_sum_has_the_same_clients_in_every_round(small: Small) -> None:
    with pytest.raises(UsageError, match="secure = true is not possible with fedavg: join_late = 'red:2' changes"):
        run(small("fedavg", secure=True, settings={"join_late": "red:2"}))
