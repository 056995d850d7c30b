from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats
from tools.method_table import (
    HEADER,
    alone,
    augmentation,
    kind,
    label,
    line,
    method_tables,
    pareto_panels,
    pareto_with_bytes,
)
from tools.prose_numbers import Numbers

from fedchoir.reporting import figures
from fedchoir.reporting.run_groups import Row
from fedchoir.reporting.store import read_records
from fedchoir.utils.sizes import readable_bytes

RESULTS = Path(__file__).parents[2] / "results"


@cache
def rows() -> list[Row]:
    return Numbers(RESULTS).rows("digits-lite")


@cache
def lines() -> dict[str, dict[str, str]]:
    """The lines of the table without augmentation, by method."""
    table = method_tables(rows()).split("**private_augment=none**")[1].split("**private_augment")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "|" in line]
    return {line[0].removeprefix("| ").strip(): dict(zip(HEADER, line, strict=True)) for line in cells[2:]}


def by_seed(name: str, key: str = "inter_avg") -> dict[int, float]:
    records = read_records(RESULTS / "digits-lite" / "runs.jsonl")
    return {record["seed"]: record[key] for record in records if record["label"] == name}


@pytest.mark.parametrize(
    ("name", "reference"),
    [("fccl+", "solo"), ("fbcl", "solo"), ("fedavg, one small model", "solo, one small model")],
)
def test_a_line_is_computed_from_the_stored_runs(name: str, reference: str) -> None:
    line, own, base = lines()[name], by_seed(name), by_seed(reference)
    assert line["inter %"] == f"{mean(own.values()):.2f} ± {stdev(own.values()):.2f}"
    gains = [own[seed] - base[seed] for seed in own]
    low, high = stats.t.interval(0.95, len(gains) - 1, mean(gains), stdev(gains) / len(gains) ** 0.5)
    text = line["inter − alone"]
    shown = [float(number) for number in re.findall(r"[-+]\d+\.\d", text.replace("−", "-"))]
    assert shown == pytest.approx([mean(gains), low, high], abs=0.051)
    assert text.startswith("**") == (low > 0 or high < 0)


def test_traffic_is_of_one_client_in_the_whole_run() -> None:
    (record, *_) = (r for r in read_records(RESULTS / "digits-lite" / "runs.jsonl") if r["label"] == "fedmd")
    size, unit = lines()["fedmd"]["up"].split()
    assert float(size) * 1024 ** ("B", "KiB", "MiB").index(unit) == pytest.approx(record["bytes_up"] / 4, rel=0.06)
    assert lines()["solo"]["up"] == "0 B"


def test_samples_are_those_that_a_client_trains_on() -> None:
    """Public and received ones count; what older runs did not count is not shown."""
    named = {row.label.split(" private_augment")[0]: row for row in Numbers(RESULTS).rows("all-methods-lite")}
    shown = {name: dict(zip(HEADER, line(named[name], []), strict=True))["samples"] for name in named}
    for name in ("solo", "fccl+", "choir"):
        budgets = [budget.samples or {} for run in named[name].results for budget in run.budget.values()]
        assert shown[name] == f"{mean(sum(samples.values()) for samples in budgets):,.0f}"
    counts = [int(shown[name].replace(",", "")) for name in ("solo", "fccl+", "choir")]
    assert counts == sorted(set(counts))
    assert lines()["solo"]["samples"] == "–"


def test_a_row_is_compared_with_its_own_models_and_augmentation() -> None:
    named = {row.label: row for row in rows()}
    assert alone(named["solo"], rows()) is None
    for name in ("fccl+", "fccl+, affine + recolor", "fedavg, one small model, affine + recolor"):
        group = [row for row in rows() if augmentation(row) == augmentation(named[name])]
        found: Any = alone(named[name], group)
        assert found.method == "solo"
        assert not found.results[0].settings.get("centralized")
        assert [c["model"] for c in found.results[0].clients] == [c["model"] for c in named[name].results[0].clients]


def test_kinds() -> None:
    found = {label(row): kind(row) for row in rows()}
    assert found["fml"] == "different"
    assert found["fccl+"] == "different, public set"
    assert found["fedavg, one small model"] == found["solo, centralized"] == "reference"


def test_pareto_panels_hold_every_row_and_are_drawn(tmp_path: Path) -> None:
    data = pareto_panels(rows())
    assert sum(len(panel["points"]) for panel in data["panels"]) == len(rows())
    for panel in data["panels"]:
        points = [(point["intra"], point["inter"]) for point in panel["points"]]
        best = {points[k] for k in panel["front"]}
        assert all(any(b[0] >= p[0] and b[1] >= p[1] for b in best) for p in points)
        assert set(panel["front"]) <= set(panel["named"])
    figures.save(figures.pareto, data, tmp_path / "pareto.svg")
    drawn = (tmp_path / "pareto.svg").read_text()
    assert all(panel["points"][k]["label"] in drawn for panel in data["panels"] for k in panel["named"])


@pytest.mark.parametrize("scope", ["intra", "inter"])
def test_a_row_without_a_score_is_in_the_table_and_not_in_the_plots(scope: str) -> None:
    """Its runs have no domain that is another client's, or no client that is tested on its own one."""
    first, *others = (row for row in rows() if augmentation(row) == "none")
    runs = (run.model_copy(update={f"{scope}_avg": None, scope: []}) for run in first.results)
    mixed = [replace(first, results=tuple(runs)), *others]
    assert dict(zip(HEADER, line(mixed[0], mixed), strict=True))[f"{scope} %"] == "–"
    for made in (pareto_panels, pareto_with_bytes):
        (panel,) = made(mixed)["panels"]
        assert len(panel["points"]) == len(others)
        assert {*panel["front"], *panel["named"]} <= set(range(len(others)))
    assert pareto_panels(mixed[:1]) == {"panels": []}


def test_a_pareto_plot_of_a_few_rows_names_all_with_their_bytes(tmp_path: Path) -> None:
    few = [row for row in rows() if label(row) in ("solo", "fedmd", "fccl+") and augmentation(row) == "none"]
    (panel,) = pareto_with_bytes(few)["panels"]
    labels = {point["label"].split(", ")[0]: point["label"] for point in panel["points"]}
    assert labels.keys() == {"solo", "fedmd", "fccl+"}
    assert labels["solo"] == "solo, 0 B"
    run = next(row for row in few if row.label.startswith("fccl+")).results[0]
    assert labels["fccl+"].removeprefix("fccl+, ") == readable_bytes(run.bytes_up + run.bytes_down)
    assert panel["named"] == [0, 1, 2]
    figures.save(figures.pareto, {"panels": [panel]}, tmp_path / "pareto.svg")
    assert labels["fccl+"] in (tmp_path / "pareto.svg").read_text()
