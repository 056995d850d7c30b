"""export and predict on the command line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedchoir
from fedchoir import Experiment, UsageError
from fedchoir.cli.app import app

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "heart"
    settings = {"local_epochs": 2}
    fedchoir.run(Experiment(method="solo", scenario="heart", rounds=1, out=out, settings=settings))
    return out


def test_predict_writes_a_csv_with_probabilities(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak"
    file.write_text(f"{header}\n63,1,1,145,233,1,2,150,0,2.3\n41,0,2,130,204,,2,172,0,1.4\n")
    result = runner.invoke(app, ["predict", str(run), str(file), "--client", "cleveland"])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["sample"] for row in rows] == ["0", "1"]
    for row in rows:
        p = {name: float(value) for name, value in row.items() if name.startswith("p(")}
        assert sum(p.values()) == pytest.approx(1, abs=1e-5)
        assert f"p({row['class']})" == max(p, key=p.__getitem__)


def test_export_prints_its_files(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    result = runner.invoke(app, ["export", str(run), "--client", "long-beach", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.exists()
    assert result.output.count("wrote ") == 3


def test_missing_data_has_one_line(run: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["predict", str(run), str(tmp_path / "no.csv"), "--client", "long-beach"])
    assert isinstance(result.exception, UsageError)
    assert "there is no such folder or file" in str(result.exception)
