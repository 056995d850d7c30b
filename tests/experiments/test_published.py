from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from tests.fake_results import fake_result

from fedchoir import methods
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.published import left_open, match, paper_plan, printed
from fedchoir.experiments.reproduce import runs_of, table_with_runs, tables
from fedchoir.experiments.sweep import jobs_of, read_sweep

ROOT = Path(__file__).parents[2]
BLOCKS = tomllib.loads((files("fedchoir.experiments") / "published.toml").read_text(encoding="utf-8"))["table"]
NAMES = [f"{b['of']} {b['scenario']} {b.get('public', '')} {b['metric']} {b.get('models', '')}" for b in BLOCKS]
WANTED = {
    "fccl+": [f"table{n}" for n in range(8, 20)],
    "fccl": ["table1", "table2", "table3", "fig7", "fig8"],
    "fbcl": [f"table{n}" for n in range(2, 6)],
    "fedct": ["table1", "table3", "table4", "table5", "table6"],
    "fedfoa": ["table1", "table2", "table3"],
    "flamby": ["heart"],
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
    for values in block["rows"].values():
        for column, value in zip(block["columns"], values, strict=True):
            assert math.isnan(value) or 0 < value <= top or (column, value) == ("±", 0)  # all seeds may agree


def test_every_table_of_the_papers_is_there() -> None:
    there = {block["of"] for block in BLOCKS}
    assert there == {f"{paper}/{table}" for paper, names in WANTED.items() for table in names}
    assert there <= set(tables())


def test_main_rows_of_the_fccl_plus_paper() -> None:
    """Digits with CIFAR-100 and different models: inter-domain, intra-domain."""
    expected = {
        "solo": (25.68, 73.14), "fedmd": (26.38, 80.70), "feddf": (30.43, 83.38), "rhfl": (34.06, 88.35),
        "fccl": (33.51, 85.69), "fccl+": (50.49, 90.57),
    }  # fmt: skip
    found = {(n.label, n.metric): n.value for n in printed() if n.table in ("fccl+/table8", "fccl+/table9")
             and n.scenario == "digits"}  # fmt: skip
    assert {label: (found[label, "inter"], found[label, "intra"]) for label in expected} == expected


def test_every_row_has_a_run_and_the_rows_without_are_named() -> None:
    missing = {(block["of"], label) for block in BLOCKS for label in block.get("missing", [])}
    orphans = {(n.table, n.label.split(" ")[0]) for n in printed() if paper_plan(n) is None}
    assert orphans == missing


def test_every_run_of_a_table_with_numbers_has_one() -> None:
    """Except rows that are not readable, which the notes of the table name."""
    unreadable = {("fccl+/table8", "office31", "fccl+"), ("fccl+/table8", "office-home", "fccl+")}
    for table in {block["of"] for block in BLOCKS}:
        shown = {(n.scenario, n.label) for n in printed() if table_with_runs(n.table) == table_with_runs(table)}
        jobs = {(job.experiment.scenario, job.label) for job in runs_of(table)}
        assert {(table, *pair) for pair in jobs - shown} <= unreadable, table


def values_of(result: Any, *keys: str) -> dict[str, float]:
    return {metric: number.value for metric, number in match(result, keys).printed.items()}


def test_a_key_finds_the_row_of_its_table_and_of_tables_with_the_same_runs() -> None:
    assert values_of(fake_result("fccl+"), "fccl+/table8:fccl+") == {"inter": 50.49, "intra": 90.57}
    assert values_of(fake_result("fccl+"), "fccl+/table9:fccl+") == {"inter": 50.49, "intra": 90.57}
    assert values_of(fake_result("fccl+"), "fccl+/table8:no such row") == {}
    assert values_of(fake_result("fccl+"), "no/table:fccl+") == {}
    assert values_of(fake_result("fccl+")) == {}


def test_of_several_rows_the_one_with_the_data_and_models_of_the_run_is_taken() -> None:
    assert values_of(fake_result("solo", "office-home"), "fccl+/table8:solo") == {"inter": 20.31, "intra": 63.68}
    key = "fccl+/table18:fccl+"
    for models in (("resnet18", "resnet12", "efficientnet_b0", "mobilenet_v2"),
                   ("resnet10", "resnet12", "efficientnet_b0", "simple_cnn")):  # fmt: skip
        expected = {
            n.metric: n.value
            for n in printed()
            if n.table == "fccl+/table18" and n.label == "fccl+" and n.models == models
        }
        assert values_of(fake_result("fccl+", models=models), key) == expected != {}
    weak = "fccl+/table13:FISL public_augment=weak"
    for public, value in (("cifar100", 37.74), ("tiny-imagenet", 38.07), ("fashion-mnist", 35.00)):
        assert values_of(fake_result("fccl+", public=public), weak) == {"inter": value}


def test_several_keys_add_their_metrics() -> None:
    run = fake_result("fedct", "cifar10", settings={"beta": 0.1})
    assert values_of(run, "fedct/table1:fedct beta=0.1", "fedct/table6:fedct beta=0.1") == {
        "intra": 78.22,
        "rounds": 28,
    }
    random = fake_result("fedct", "cifar10", settings={"beta": 0.5, "broadcast": "random"})
    assert values_of(random, "fedct/table4:random beta=0.5") == {"intra": 87.78, "rounds": 104}
    found = match(random, ["fedct/table4:random beta=0.5"]).printed["rounds"]
    assert (found.target, found.unit) == (88.0, "interactions")
    four = fake_result("fedfoa", "cifar10", ("resnet18", "vgg9", "alexnet", "resnet34"), settings={"clients": 4})
    assert match(four, ["fedfoa/table1:fedfoa"]).printed["intra"].clients[1] == 75.86


def test_notes_name_the_settings_that_differ_from_the_paper() -> None:
    key = ["fccl+/table8:fedmd"]
    assert match(fake_result("fedmd", profile="paper"), key).notes == ()
    assert set(match(fake_result("fedmd"), key).notes) == {
        "local_batch 128 (256)", "lr_schedule linear (constant)", "public_batch 256 (512)", "pretrain_epochs 0 (50)",
    }  # fmt: skip
    other = fake_result(
        "fedmd", profile="paper", rounds=2, settings={"local_epochs": 1}, models=("resnet10@8", "resnet12@8")
    )
    notes = match(other, key).notes
    assert notes[0] == "rounds 2 (40)"
    assert notes[1] == "models resnet10@8, resnet12@8 (resnet10, resnet12, efficientnet_b0, mobilenet_v2)"
    assert notes[2:] == ("local_epochs 1 (20)",)
    public = fake_result("fedmd", profile="paper", public="tiny-imagenet")
    assert match(public, key).notes == ("public tiny-imagenet (cifar100)",)


def test_a_constant_that_the_paper_does_not_give_is_not_shown_as_its() -> None:
    run = fake_result("fedct", "cifar10", profile="paper", settings={"beta": 0.5, "kappa": 0.1, "lambda_fuse": 0.1})
    notes = match(run, ["fedct/table1:fedct beta=0.5"]).notes
    assert "kappa 0.1 (not given)" in notes
    assert "lambda_fuse 0.1 (0.5)" in notes


@pytest.mark.parametrize("paper", ["fedct", "fedfoa"])
def test_options_that_a_paper_leaves_open_exist(paper: str) -> None:
    known = {"rounds"} | set(methods.get(paper).Params.model_fields)
    assert left_open(paper)
    assert left_open(paper) <= known


def test_an_option_that_is_younger_than_the_run_has_its_default() -> None:
    run = fake_result("fedavg", models=("resnet12",), profile="paper")
    del run.settings["eval_model"]
    assert set(match(run, ["fccl+/table15:fedavg"]).notes) == {"eval_model global (own)", "weighting size (uniform)"}


def test_numbers_for_other_data_are_shown_without_notes() -> None:
    found = match(fake_result("fccl+", "digits-lite"), ["fccl+/table8:fccl+"])
    assert found.other_data
    assert {metric: number.value for metric, number in found.printed.items()} == {"inter": 50.49, "intra": 90.57}
    assert found.notes == ()


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*/sweep.toml")), ids=lambda file: file.parent.name)
def test_every_key_of_the_stored_sweeps_exists(file: Path) -> None:
    """A row may be printed for a part of the grid: Table IV of FedCT has β = 0.5 alone."""
    known = {f"{table_with_runs(n.table)}:{n.label}" for n in printed()}
    rows = {key.partition(" beta=")[0] for key in known}
    for job in jobs_of(read_sweep(file), Path("runs")):
        for key in job.published:
            table, _, label = key.partition(":")
            whole = f"{table_with_runs(table)}:{label}"
            assert whole in known or (whole.endswith(" beta=0.1") and whole.partition(" beta=")[0] in rows), key


def test_an_average_that_a_paper_leaves_out_is_the_mean_of_its_columns() -> None:
    numbers = [n for n in printed() if n.table == "fccl/table3" and n.label == "fccl"]
    assert {n.metric: round(n.value, 4) for n in numbers} == {"inter": 63.7325, "intra": 72.86}
