"""Metrics in events and results: matrices, means, worst client, spread, best rounds; what was not evaluated."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.metric_summary import event_fields, headline, result_fields, summarise_clients
from fedchoir.core.metrics import METRICS
from fedchoir.core.scores import Evaluation, TestScore, Validation

TESTS = ("a", "b")


def spec_of(*names: str, metric: str = "auroc") -> FederationSpec:
    infos = tuple(ClientInfo(name, "mlp", 10, 10, name) for name in names)
    return FederationSpec(("x", "y"), infos, rounds=5, seed=0, metric=metric)


def score(value: float | None, *, intervals: bool = False) -> TestScore:
    metrics = dict.fromkeys(METRICS, value)
    return TestScore(value or 0.0, metrics, {n: [1.0, 2.0] for n in METRICS} if intervals else {})


def evaluation(*values: float | None, best: int | None = None, **options: Any) -> Evaluation:
    validation = None if best is None else Validation(10.0 * best, best)
    return Evaluation(tuple(score(value, **options) for value in values), validation)


def event(
    index: int, *found: Evaluation | None, spec: FederationSpec, tests: tuple[str, ...] = TESTS
) -> dict[str, Any]:
    return {"round": index, **event_fields(found, spec, tests)}


def test_an_event_has_matrices_and_the_headline() -> None:
    fields = event_fields([evaluation(90.0, 50.0), evaluation(70.0, None)], spec_of("a", "b"), TESTS)
    assert fields["metrics"]["auroc"] == [[90.0, 50.0], [70.0, None]]
    assert fields["headline"] == {"metric": "auroc", "intra_avg": 90.0, "inter_avg": 60.0}  # undefined: does not count
    assert headline(fields) == ("auroc", 90.0, 60.0)
    assert "metrics_ci" not in fields
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields


def test_rounds_without_an_evaluation_and_clients_without_one() -> None:
    spec = spec_of("a", "b")
    assert event_fields(None, spec, TESTS) == {"accuracy": None, "intra_avg": None, "inter_avg": None}
    fields = event_fields([None, Evaluation((TestScore(40.0), TestScore(60.0)))], spec, TESTS)
    assert fields == {"accuracy": [None, [40.0, 60.0]], "intra_avg": 60.0, "inter_avg": 40.0}
    assert headline(fields) == ("accuracy", 60.0, 40.0)


def test_a_result_has_the_mean_of_the_last_three_rounds_cell_by_cell() -> None:
    spec = spec_of("a", "b")
    rounds = [
        event(r, evaluation(10.0 * r, 0.0), evaluation(50.0, None if r == 3 else 20.0), spec=spec) for r in range(4)
    ]
    fields = result_fields(spec, spec, TESTS, rounds)
    assert fields["metrics"]["auroc"] == [[20.0, 0.0], [50.0, 20.0]]
    intra, inter = (fields["metrics_summary"]["auroc"][scope] for scope in ("intra", "inter"))
    assert (intra.clients, intra.mean, intra.worst, intra.worst_client) == ([20.0, 20.0], 20.0, 20.0, "a")
    assert (inter.clients, inter.worst_client, inter.spread) == ([0.0, 50.0], "a", 25.0)


def test_the_worst_client_is_the_one_with_the_largest_loss() -> None:
    assert summarise_clients([0.2, 0.9, 0.4], "abc", "log_loss").worst_client == "b"
    assert summarise_clients([0.2, 0.9, 0.4], "abc", "auroc").worst_client == "a"
    assert summarise_clients([None, None], "ab", "auroc").mean is None


def test_own_shares_have_a_summary_of_their_own() -> None:
    spec = FederationSpec(("x", "y"), tuple(ClientInfo(n, "mlp", 1, 1, "global") for n in "ab"), 1, 0)
    found = event(0, evaluation(50.0, 80.0), evaluation(50.0, 20.0), spec=spec, tests=("global",))
    fields = result_fields(spec, spec, ("global",), [found])
    assert fields["metrics"]["ece"] == [[50.0], [50.0]]
    assert fields["metrics_summary"]["auroc"]["own"].clients == [80.0, 20.0]
    assert "inter" not in fields["metrics_summary"]["auroc"]


def test_intervals_are_those_of_the_last_round_that_has_them() -> None:
    spec = spec_of("a", "b")
    last = event(1, evaluation(1.5, 1.5, intervals=True), None, spec=spec)
    fields = result_fields(spec, spec, TESTS, [event(0, evaluation(1.0, 1.0), evaluation(1.0, 1.0), spec=spec), last])
    assert fields["metrics_ci"]["auroc"] == [[[1.0, 2.0], [1.0, 2.0]], []]


def test_best_rounds_have_the_scores_of_their_round() -> None:
    spec = spec_of("a", "b")
    events = [
        event(0, evaluation(30.0, 1.0, best=0), evaluation(60.0, 2.0, best=0), spec=spec),
        event(1, evaluation(40.0, 3.0, best=1), None, spec=spec),
        event(2, evaluation(20.0, 4.0, best=1), evaluation(10.0, 5.0, best=0), spec=spec),
    ]
    first, second = result_fields(spec, spec, TESTS, events)["best"]
    assert (first.client, first.round, first.validation, first.metrics["auroc"]) == ("a", 1, 10.0, [40.0, 3.0])
    assert (second.client, second.round, second.metrics["auroc"]) == ("b", 0, [60.0, 2.0])


def test_clients_that_are_not_in_the_result_are_not_in_its_metrics() -> None:
    everyone, kept = spec_of("a", "b"), spec_of("b")
    fields = result_fields(everyone, kept, TESTS, [event(0, None, evaluation(1.0, 2.0), spec=everyone)])
    assert fields["metrics"]["auroc"] == [[1.0, 2.0]]
    assert fields["metrics_summary"]["auroc"]["intra"].clients == [2.0]


def test_evaluations_survive_json() -> None:
    whole = evaluation(90.0, None, best=3, intervals=True)
    assert Evaluation.read(json.loads(json.dumps(asdict(whole)))) == whole


@pytest.mark.parametrize("events", [[], [{"round": 0, "accuracy": [[1.0, 2.0]]}]])
def test_older_events_have_no_metrics(events: list[dict[str, Any]]) -> None:
    assert result_fields(spec_of("a"), spec_of("a"), TESTS, events) == {"metric": "auroc"}


def test_the_unseen_domain_is_counted_by_itself_and_among_the_others() -> None:
    spec = replace(spec_of("a", "c"), held_out="b")
    tests = ("a", "b", "c")
    found = [evaluation(90.0, 30.0, 60.0), None], [evaluation(90.0, 40.0, 60.0), evaluation(50.0, 20.0, 80.0)]
    events = [event(r, *values, spec=spec, tests=tests) for r, values in enumerate(found)]
    assert [(e["inter_avg"], e["unseen_avg"]) for e in events] == [(45.0, 30.0), (42.5, 30.0)]
    assert events[1]["headline"]["unseen_avg"] == 30.0
    summary = result_fields(spec, spec, tests, events)["metrics_summary"]["auroc"]["unseen"]
    assert (summary.clients, summary.mean, summary.worst_client) == ([35.0, 20.0], 27.5, "c")
