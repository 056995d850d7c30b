from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedchoir.cli.app import app
from fedchoir.reporting.analysis.analyse import analyse as analyse_run
from fedchoir.reporting.analysis.compute import ANALYSES
from fedchoir.reporting.analysis.load import load_run
from fedchoir.reporting.page import write_report
from fedchoir.utils.errors import UsageError


def test_all_figures_of_a_run_and_the_report(play, tmp_path: Path) -> None:
    play("fccl+", rounds=2)
    done = CliRunner().invoke(app, ["analyse", str(tmp_path / "run"), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "run" / "analysis"
    made = {item["name"] for item in json.loads((folder / "index.json").read_text())}
    assert {"accuracy", "correlation", "similarity", "tsne", "activation", "cka", "domain-distance"} == made
    data = json.loads((folder / "correlation.json").read_text())
    assert np.array(data["public"]).shape == (3, 4, 4)
    assert np.abs(np.array(data["private"])).max() <= 1.0001
    page = write_report([tmp_path / "run"]).read_text()
    assert page.count("data:image/png;base64") == len(made)


def test_some_figures_as_svg_keep_the_others(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    analyse_run(run, only=["accuracy"])
    analyse_run(run, only=["domain-distance"], kind="svg")
    index = json.loads((tmp_path / "run" / "analysis" / "index.json").read_text())
    assert [item["file"] for item in index] == ["accuracy.png", "domain-distance.svg"]
    assert "<svg" in (tmp_path / "run" / "analysis" / "domain-distance.svg").read_text()
    with pytest.raises(UsageError, match="no analysis 'tnse'"):
        analyse_run(run, only=["tnse"])


def test_an_exchange_of_models(play, tmp_path: Path) -> None:
    play("fedexg", rounds=1)
    outcomes = analyse_run(load_run(tmp_path / "run", device="cpu"), only=["exchange", "cka"])
    assert [outcome.file for outcome in outcomes] == [
        "cka.png",
        "exchange.png",
    ]
    data = json.loads((tmp_path / "run" / "analysis" / "exchange.json").read_text())
    assert len(data["retention"]) == 3
    assert {row["source"] for row in data["retention"]} == {"green", "red", "white"}


def test_correlations_of_fedfoa(play, tmp_path: Path) -> None:
    play("fedfoa", rounds=2)
    outcomes = analyse_run(load_run(tmp_path / "run", device="cpu"), only=["correlation-distance", "correlation"])
    assert outcomes[1].file == "correlation-distance.png"
    assert "without labels" in outcomes[0].why_not
    data = json.loads((tmp_path / "run" / "analysis" / "correlation-distance.json").read_text())
    assert data["rounds"][-1] == 2
    assert data["maps"][-1][0][0] == 0


def test_without_a_public_set_private_images_remain(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    data = ANALYSES["correlation"].compute(run)
    assert data["public"] is None
    assert len(data["private"]) == 3
