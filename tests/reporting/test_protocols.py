"""Tables of runs with a protocol: rotated models form one row over seeds, an unseen domain has a column."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from tests.fake_results import CLIENTS, fake_result

from fedchoir.core.metric_summary import summarise_clients
from fedchoir.core.result import Result
from fedchoir.reporting.run_groups import grouped, rows
from fedchoir.reporting.tables import as_text, sheets
from fedchoir.utils.errors import UsageError

MODELS = [model for _, model, _ in CLIENTS]


def rotated(method: str, seed: int, **more: Any) -> Result:
    models = MODELS[-seed - 1 :] + MODELS[: -seed - 1]
    clients = [{"name": n, "model": m, "train": 9, "test": 9} for (n, _, _), m in zip(CLIENTS, models, strict=True)]
    return fake_result(method, seed=seed, settings={"rotate": True}, extras={"clients": clients}, **more)


def test_rotated_runs_of_several_seeds_are_one_row() -> None:
    results = [rotated("fccl+", seed, inter=40.0 + seed) for seed in range(3)]
    ((group, (row,)),) = grouped(rows([*results]))
    assert group == ("digits · 4 clients (efficientnet_b0, mobilenet_v2, resnet10, resnet12; rotated) · 40 rounds")
    assert (len(row.results), row.label) == (3, "fccl+")
    number = row.number("inter")
    assert number is not None
    assert number.mean == 41.0
    assert [number and number.mean for number in row.clients("inter")] == [39.5, 40.5, 41.5, 42.5]


def test_rotated_runs_are_not_compared_with_others() -> None:
    groups = grouped(rows([rotated("fccl+", 0), fake_result("fccl+"), rotated("solo", 0)]))
    assert sorted(len(group_rows) for _, group_rows in groups) == [1, 2]


def held_out(method: str, unseen: float, seed: int = 0) -> Result:
    names = ["mnist", "usps", "svhn", "syn"]
    summary = {"svhn": summarise_clients([unseen] * 4, names, "accuracy")}
    return fake_result(method, seed=seed, settings={"held_out": "svhn"}, extras={"unseen": summary})


def test_the_unseen_domain_is_a_column_only_if_one_is_held_out() -> None:
    (sheet,) = sheets(rows([held_out("solo", 20.0), held_out("fccl+", 30.0), held_out("fccl+", 34.0, seed=1)]))
    assert "held_out=svhn" in sheet.title
    place = sheet.header.index("unseen %")
    assert [line[place].text for line in sheet.lines] == ["20.00", "32.00 ± 2.83"]
    assert (sheet.header[place + 1], sheet.lines[1][place + 1].text) == ("Δ solo", "+12.00")
    (usual,) = sheets(rows([fake_result("solo"), fake_result("fccl+")]))
    assert "unseen %" not in usual.header


@pytest.mark.parametrize("view", ["accuracy", "clients"])
def test_the_unseen_domain_is_in_the_csv(view: Any) -> None:
    text = as_text(rows([held_out("solo", 20.0), held_out("fccl+", 30.0)]), "csv", view)
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["unseen"], second["unseen"], second["unseen_minus_solo"]) == ("20.0", "30.0", "10.0")
    assert "unseen" not in as_text(rows([fake_result("solo")]), "csv", view)


def left_out(method: str, domain: str, unseen: float, seed: int = 0) -> Result:
    summary = {domain: summarise_clients([unseen] * 4, ["mnist", "usps", "svhn", "syn"], "accuracy")}
    return fake_result(method, seed=seed, settings={"held_out": domain}, extras={"unseen": summary})


def test_leave_one_domain_out_is_averaged_within_each_seed() -> None:
    runs = [
        left_out(method, domain, base + 2 * seed, seed)
        for method, bases in (("solo", (20.0, 40.0)), ("fccl+", (30.0, 36.0)))
        for domain, base in zip(("svhn", "mnist"), bases, strict=True)
        for seed in (0, 1)
    ]
    (sheet,) = sheets(rows([*runs, fake_result("fccl+")]), "held-out")
    places = [sheet.header.index(name) for name in ("svhn", "mnist", "mean")]
    lines = {line[0].text: [line[k] for k in places] for line in sheet.lines}
    assert [cell.text for cell in lines["solo"]] == ["21.00 ± 1.41", "41.00 ± 1.41", "31.00 ± 1.41"]
    assert [cell.text for cell in lines["fccl+"]] == ["31.00 ± 1.41", "37.00 ± 1.41", "34.00 ± 1.41"]
    assert [cell.place for cell in lines["solo"]] == [1, 0, 1]


def test_a_mean_over_domains_needs_all_of_them() -> None:
    runs = [left_out("solo", "svhn", 20.0), left_out("solo", "mnist", 40.0), left_out("fccl+", "svhn", 30.0)]
    (sheet,) = sheets(rows(runs), "held-out")
    line = next(line for line in sheet.lines if line[0].text == "fccl+")
    shown = {name: cell.text for name, cell in zip(sheet.header, line, strict=True)}
    assert shown == {"method": "fccl+", "svhn": "30.00", "mnist": "–", "mean": "–"}
    with pytest.raises(UsageError, match="no domain is held out"):
        sheets(rows([fake_result("solo")]), "held-out")


def test_other_protocols_are_named_in_the_title() -> None:
    settings = {"clients": 8, "size_skew": 0.5, "join_late": "syn-0:3"}
    ((group, _),) = grouped(rows([fake_result("fccl+", settings=settings)]))
    assert group.endswith("join_late=syn-0:3 · size_skew=0.5")
