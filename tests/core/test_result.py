"""The result of a run: means over rounds and clients, and reading results and events back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.result import Result, load_result, own_mean, read_events, split_rows, summarise, versions
from fedchoir.utils.errors import UsageError

TESTS = ("x", "y")
FACTS: dict[str, Any] = {
    "method": "fedmd", "profile": "fixed", "scenario": "s", "public": None, "seed": 0, "settings": {}, "notes": ["n"],
    "device": "cpu", "precision": "fp32",
}  # fmt: skip


def make_spec(*domains: str) -> FederationSpec:
    infos = tuple(ClientInfo(f"c{k}", "mlp", 40, 10, domain) for k, domain in enumerate(domains))
    return FederationSpec(("a", "b"), infos, rounds=3, seed=0)


def event(index: int, accuracy: Any, **changes: Any) -> dict[str, Any]:
    seconds = {"total": 1.0, "public": 0.25}
    return {
        "round": index, "accuracy": accuracy, "bytes_up": 10, "bytes_down": 5, "messages": 2, "seconds": seconds,
        **changes,
    }  # fmt: skip


def test_accuracies_are_means_over_rounds_and_costs_are_sums() -> None:
    events = [
        event(0, [[0.0, 0.0], [0.0, 0.0]]),
        event(1, None),
        *(event(r, [[60.0, 20.0], [40.0, 80.0]]) for r in (2, 3)),
    ]
    events.append(event(4, [[90.0, 20.0], [40.0, 80.0]]))
    result = summarise(make_spec("x", "y"), TESTS, events, FACTS)
    assert result.accuracy == [[70.0, 20.0], [40.0, 80.0]]  # of the last three evaluated rounds
    assert (result.intra, result.inter) == ([70.0, 80.0], [20.0, 40.0])
    assert (result.intra_avg, result.inter_avg) == (75.0, 30.0)
    assert (result.rounds, result.bytes_up, result.bytes_down, result.messages) == (5, 50, 25, 10)
    assert result.seconds == {"total": 5.0, "public": 1.25}
    assert result.clients[1] == {"name": "c1", "model": "mlp", "train": 40, "test": 10}
    assert result.tests == ["x", "y"]


def test_under_label_skew_there_is_no_inter_domain_accuracy() -> None:
    spec = make_spec("label-skew", "label-skew")
    assert split_rows([[60.0], [40.0]], spec, ["test"]) == ([60.0, 40.0], [])
    result = summarise(spec, ["test"], [event(0, [[60.0], [40.0]], own=[70.0, None])], FACTS)
    assert result.inter_avg is None
    assert result.own == [70.0, None]


def test_own_accuracy_is_the_mean_of_the_last_rounds_that_have_one() -> None:
    events = [{"own": [0.0, 0.0]}, {"own": [1.0, None]}, {}, {"own": [2.0, None]}, {"own": [3.0, 8.0]}]
    assert own_mean(events) == [2.0, 8.0]
    assert own_mean([{}]) == []


def test_clients_that_never_evaluated_are_left_out_with_a_note() -> None:
    result = summarise(make_spec("x", "y"), TESTS, [event(0, [[60.0, 20.0], None])], FACTS)
    assert [client["name"] for client in result.clients] == ["c0"]
    assert result.accuracy == [[60.0, 20.0]]
    assert result.notes[0] == "n"
    assert "c1: never evaluated" in result.notes[1]


@pytest.mark.parametrize("accuracy", [None, [None, None]])
def test_a_federation_that_reports_no_accuracies_has_a_result_without_them(accuracy: Any) -> None:
    result = summarise(make_spec("x", "y"), TESTS, [event(0, accuracy)], FACTS)
    assert [client["name"] for client in result.clients] == ["c0", "c1"]
    assert (result.accuracy, result.intra, result.inter) == ([], [], [])
    assert (result.intra_avg, result.inter_avg) == (None, None)
    assert result.notes == ["n", "no client reports accuracies"]
    assert result.bytes_up == 10


def test_a_result_can_be_read_back(tmp_path: Path) -> None:
    result = summarise(make_spec("x", "y"), TESTS, [event(0, [[60.0, 20.0], [40.0, 80.0]])], FACTS)
    (tmp_path / "result.json").write_text(json.dumps(result.model_dump(mode="json")))
    assert load_result(tmp_path) == load_result(tmp_path / "result.json") == result


def test_a_missing_or_damaged_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*result\.json: is the run finished"):
        load_result(tmp_path)
    for text in ("{", "[]", '{"method": "fedmd"}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(UsageError, match=r"result\.json is not a result") as error:
            load_result(tmp_path)
        assert "\n" not in str(error.value)


def test_an_event_that_a_crash_cut_off_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_events(path) == []
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert read_events(path) == [{"round": 0}, {"round": 1}]


def test_versions_name_what_numbers_depend_on() -> None:
    assert {"fedchoir", "python", "torch", "torchvision", "timm", "numpy", "scikit-learn"} == set(versions())
    assert "missing" not in versions().values()


def test_a_result_has_the_unseen_accuracy_only_if_a_domain_is_held_out() -> None:
    accuracy = [[60.0, 20.0], [40.0, 80.0]]
    usual = summarise(make_spec("x", "x"), TESTS, [event(0, accuracy)], FACTS)
    assert (usual.unseen, usual.unseen_avg) == ({}, None)
    assert "unseen" not in usual.model_dump(mode="json")
    result = summarise(replace(make_spec("x", "x"), held_out="y"), TESTS, [event(0, accuracy)], FACTS)
    assert (result.unseen["y"].clients, result.unseen_avg, result.inter_avg) == ([20.0, 80.0], 50.0, 50.0)
    assert Result.model_validate_json(result.model_dump_json()) == result
    assert result.model_dump(include={"seed"}) == {"seed": result.seed}
