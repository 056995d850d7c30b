"""The kept runs on heart disease beside FLamby's published numbers."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from pathlib import Path

import pytest

import fedchoir

ROOT = Path(__file__).parents[2]
HOSPITALS = ["cleveland", "hungary", "switzerland", "long-beach"]


def flamby() -> dict[str, list[float]]:
    """Row → mean and standard deviation of each hospital, in turn, intra-domain."""
    content = tomllib.loads((Path(fedchoir.__file__).parent / "experiments/published.toml").read_text())
    (table,) = (t for t in content["table"] if t["of"] == "flamby/heart" and t["metric"] == "intra")
    assert table["columns"][:-2:2] == HOSPITALS
    return table["rows"]


def ours(label: str) -> list[list[float]]:
    """The intra-domain accuracy of every hospital, one list for each seed."""
    runs = [json.loads(line) for line in (ROOT / "results/heart/runs.jsonl").read_text().splitlines()]
    kept = [run for run in runs if run["label"] == label]
    assert [client["name"] for client in kept[0]["clients"]] == HOSPITALS
    return [run["intra"] for run in kept]


@pytest.mark.parametrize("label", ["local", "centralized", "fedavg"])
def test_every_hospital_is_within_two_standard_deviations(label: str) -> None:
    published, found = flamby()[label], ours(label)
    assert len(found) == 5
    for k, hospital in enumerate(HOSPITALS):
        values = [seed[k] for seed in found]
        spread = math.hypot(statistics.stdev(values), published[2 * k + 1])
        rounding = 0.01  # of the published number
        assert abs(statistics.mean(values) - published[2 * k]) <= 2 * spread + rounding, hospital
