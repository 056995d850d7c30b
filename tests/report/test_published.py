"""The papers' numbers: consistent in themselves, tied to runs, and found for the runs that they belong to."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from statistics import mean
from typing import Any

import pytest
from tests.fake_results import fake_result

from fedchoir.core.result import Result
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments import published
from fedchoir.experiments.published import Printed, match, printed
from fedchoir.experiments.reproduce import runs_of, table_with_runs, tables

BLOCKS = tomllib.loads((files("fedchoir.experiments") / "published.toml").read_text(encoding="utf-8"))["table"]
NAMES = [f"{b['of']} {b['scenario']} {b.get('public', '')} {b['metric']} {b.get('models', '')}" for b in BLOCKS]
WANTED = {
    "fccl+": [f"table{n}" for n in range(8, 20)],
    "fccl": ["table1", "table2", "table3", "fig7", "fig8"],
    "fbcl": [f"table{n}" for n in range(2, 6)],
    "fedct": ["table1", "table3", "table4", "table5", "table6"],
    "fedfoa": ["table1", "table2", "table3"],
}


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_printed_averages_are_the_mean_of_their_columns_but_for_the_doubtful(block: dict[str, Any]) -> None:
    columns, doubts = block["columns"], block.get("doubts", {})
    assert set(doubts) <= set(block["rows"])
    for label, values in block["rows"].items():
        assert len(values) == len(columns), label
        clients = [v for c, v in zip(columns, values, strict=True) if c not in ("avg", "±", "best") and "=" not in c]
        if "avg" not in columns or not clients or any(map(math.isnan, clients)):
            assert label not in doubts
            continue
        gap = abs(values[columns.index("avg")] - mean(clients))
        assert (gap > 0.02) == (label in doubts), f"{label}: {gap:.3f} away"


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_columns_are_the_clients_and_numbers_are_possible(block: dict[str, Any]) -> None:
    known = SCENARIOS[block["scenario"]]
    clients = [c for c in block["columns"] if c not in ("avg", "±", "best") and "=" not in c]
    if known.kind == "domain-shift" and clients:
        assert tuple(clients) == known.domains
    elif clients:
        assert clients == block["models"].split(",")
    top = 200 if block["metric"] == "rounds" else 100
    assert all(math.isnan(v) or 0 < v <= top for values in block["rows"].values() for v in values)


def test_every_table_of_the_five_papers_is_there() -> None:
    there = {block["of"] for block in BLOCKS}
    assert there == {f"{paper}/{table}" for paper, names in WANTED.items() for table in names}
    assert there <= set(tables())


def test_the_headline_of_the_fccl_plus_paper() -> None:
    """As METHODS and the abstract tell it: Digits with CIFAR-100, different models."""
    told = {
        "solo": (25.68, 73.14), "fedmd": (26.38, 80.70), "feddf": (30.43, 83.38), "rhfl": (34.06, 88.35),
        "fccl": (33.51, 85.69), "fccl+": (50.49, 90.57),
    }  # fmt: skip
    found = {(n.label, n.metric): n.value for n in printed() if n.table in ("fccl+/table8", "fccl+/table9")
             and n.scenario == "digits"}  # fmt: skip
    assert {label: (found[label, "inter"], found[label, "intra"]) for label in told} == told


def test_every_row_has_a_run_and_the_rows_without_are_named() -> None:
    missing = {(block["of"], label) for block in BLOCKS for label in block.get("missing", [])}
    orphans = {(n.table, n.label.split(" ")[0]) for n in printed() if published._job(n) is None}
    assert orphans == missing


def test_every_run_of_a_table_with_numbers_has_one() -> None:
    """But for the rows that are not readable, which the notes of the table tell."""
    unreadable = {("fccl+/table8", "office31", "fccl+"), ("fccl+/table8", "office-home", "fccl+")}
    for table in {block["of"] for block in BLOCKS}:
        shown = {(n.scenario, n.label) for n in printed() if table_with_runs(n.table) == table_with_runs(table)}
        jobs = {(job.experiment.scenario, job.label) for job in runs_of(table)}
        assert {(table, *pair) for pair in jobs - shown} <= unreadable, table


def values_of(result: Result) -> dict[str, float]:
    return {metric: number.value for metric, number in match(result).printed.items()}


@pytest.mark.parametrize("profile", ["fixed", "paper", "official"])
def test_a_plain_run_finds_the_main_table_under_every_profile(profile: str) -> None:
    assert values_of(fake_result("fccl+", profile=profile)) == {"inter": 50.49, "intra": 90.57}
    assert values_of(fake_result("solo", "office-home", profile=profile)) == {"inter": 20.31, "intra": 63.68}


def test_what_makes_it_another_setting() -> None:
    assert values_of(fake_result("fccl+", public="tiny-imagenet")) == {"inter": 47.80}  # intra is not readable
    assert values_of(fake_result("fccl+", models=("resnet12",))) == {"inter": 79.26, "intra": 88.97}
    assert values_of(fake_result("fccl+", models=("resnet18", "resnet12", "efficientnet_b0", "mobilenet_v2"))) == {
        "inter": 53.96, "intra": 91.35,
    }  # fmt: skip
    dual = {"regulariser": "dual", "pretrain_epochs": 50}
    assert values_of(fake_result("fccl+", settings={**dual, "omega": 1})) == {"inter": 37.44}
    assert values_of(fake_result("fccl+", settings={"omega": 1})) == {}  # no paper has this one
    assert values_of(fake_result("fccl+", settings={"local_epochs": 10})) == {"inter": 34.05}  # intra is printed for 20 alone
    assert values_of(fake_result("fccl+", settings={"regulariser": "ewc", "ewc_weight": 0.7})) == {"inter": 29.08}
    assert values_of(fake_result("moon", models=("resnet12",), settings={"temperature": 5.0})) == {
        "inter": 66.16, "intra": 82.50,
    }  # fmt: skip
    assert values_of(fake_result("moon", models=("resnet12",))) == {}  # τ = 0.5 is in no table
    assert values_of(fake_result("fccl+", settings={"private": (0.01,), "public_augment": "none"})) == {
        "inter": 34.45, "intra": 92.52,
    }  # fmt: skip
    assert values_of(fake_result("fccl+", settings={"label_noise": 0.2})) == {}
    assert values_of(fake_result("fccl+", settings={"clients": 20})) == {}
    assert values_of(fake_result("fccl+", settings={"test_split": "validation"})) == {}


def test_one_global_model() -> None:
    assert values_of(fake_result("fedct", "cifar10", settings={"beta": 0.1})) == {"intra": 78.22, "rounds": 28}
    assert values_of(fake_result("fedct", "cifar10", settings={"beta": 0.1, "base": "moon"})) == {
        "intra": 78.68,
        "rounds": 34,
    }
    assert values_of(fake_result("fedct", "cifar10", settings={"beta": 0.2})) == {}
    assert values_of(fake_result("fedct", "cifar10", settings={"clients": 100})) == {}
    foa = {"clients": 4, "partition": "iid"}
    assert values_of(fake_result("fedema", "cifar100", settings={**foa, "foa": True})) == {"intra": 49.84}
    four = ("resnet18", "vgg9", "alexnet", "resnet34")
    assert match(fake_result("fedfoa", "cifar10", four, settings=foa)).printed["intra"].clients[1] == 75.86


def test_the_nearest_setting_is_told_where_it_is_not_the_same() -> None:
    found = match(fake_result("fedmd", rounds=2, settings={"local_epochs": 1}, models=("resnet10@8", "resnet12@8")))
    assert found.printed["inter"].value == 26.38
    assert found.notes[0] == "rounds 2 (40)"
    assert "models resnet10@8, resnet12@8" in found.notes[1]
    assert "local_epochs 1 (20)" in found.notes
    assert match(fake_result("fedmd", profile="paper")).notes == ()


def test_what_a_profile_settles_is_told_by_option_or_by_the_profiles_name() -> None:
    schedule = "lr_schedule linear (constant)"
    assert match(fake_result("fedmd")).notes == ("local_batch 128 (256)", schedule, "public_batch 256 (512)")
    assert match(fake_result("fccl+", profile="official")).notes == ("profile official (paper)",)
    alike = fake_result("fedavg", models=("resnet12",), settings={"local_batch": 256})
    assert match(alike).notes == (schedule, "tested global (own)")
    office = {"private": (0.5,), "local_batch": 128, "local_epochs": 40, "public_augment": "none"}
    assert match(fake_result("fedavg", "office-caltech", ("resnet18",), settings=office)).notes == (
        schedule,
        "tested global (own)",
    )
    del alike.settings["tested"]  # a run from before there was that option
    assert match(alike).notes == (schedule, "tested global (own)")


def test_a_run_named_like_the_papers_row_may_have_other_options_and_says_so() -> None:
    tuned = fake_result("fedct", "cifar10", settings={"beta": 0.1, "kappa": 0.1})
    assert not match(tuned)
    assert not match(tuned, label="fedct, tuned")
    found = match(tuned, label="fedct beta=0.1")
    assert found.printed["intra"].value == 78.22
    assert "kappa 0.1 (1.0)" in found.notes
    elsewhere = fake_result("fedct", "cifar10", settings={"beta": 0.2, "kappa": 0.1})
    assert not match(elsewhere, label="fedct beta=0.1")


def test_batches_may_be_those_in_print_or_those_of_the_profile() -> None:
    assert match(fake_result("fccl+", profile="paper", settings={"local_batch": 128})).notes == ("local_batch 128 (256)",)
    assert match(fake_result("fccl+", profile="official", settings={"local_batch": 256})).printed["inter"].value == 50.49
    told = ("profile official (paper)", "local_batch 64 (256)")
    assert match(fake_result("fccl+", profile="official", settings={"local_batch": 64})).notes == told


def test_other_data_is_shown_only_for_a_sweep_and_never_subtracted() -> None:
    result = fake_result("fccl+", "digits-lite")
    assert not match(result)
    told = match(result, table="fccl+/table8", label="fccl+")
    assert told.other_data
    assert {m: n.value for m, n in told.printed.items()} == {"inter": 50.49, "intra": 90.57}
    assert not match(result, table="fccl+/table8", label="no such row")


def test_an_average_that_a_paper_leaves_out_is_the_mean_of_its_columns() -> None:
    numbers: list[Printed] = [n for n in printed() if n.table == "fccl/table3" and n.label == "fccl"]
    assert {n.metric: round(n.value, 4) for n in numbers} == {"inter": 63.7325, "intra": 72.86}
