"""Runs that are kept: what a table needs, and nothing of the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedchoir.experiments.config import read_experiment
from fedchoir.reporting.archive import keep
from fedchoir.reporting.tables import find_results
from fedchoir.utils.errors import UsageError

HERE = Path(__file__).parents[2] / "results" / "digits-lite" / "runs"
NAMES = ("digits-lite-solo-seed0", "digits-lite-fccl+-seed0")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The folder of a sweep with one run that is finished and one that is not."""
    out = tmp_path / "out"
    for name in NAMES:
        (out / name / "checkpoint").mkdir(parents=True)
        text = (HERE / name / "experiment.toml").read_text()
        (out / name / "experiment.toml").write_text(f'data_root = "/home/me/data"\n{text}')
        (out / name / "events.jsonl").write_text("{}\n")
    shutil.copyfile(HERE / NAMES[0] / "result.json", out / NAMES[0] / "result.json")
    labels = dict(zip(NAMES, ("solo", "fccl+"), strict=True))
    (out / "sweep.json").write_text(json.dumps({"table": None, "title": "t", "runs": labels}))
    return out


def test_finished_runs_are_kept_without_what_is_the_machines(sweep: Path, tmp_path: Path) -> None:
    assert keep(sweep, tmp_path / "results" / "small") == [NAMES[1]]
    runs = tmp_path / "results" / "small" / "runs"
    assert sorted(p.relative_to(runs).as_posix() for p in runs.rglob("*") if p.is_file()) == [
        f"{NAMES[0]}/events.jsonl", f"{NAMES[0]}/experiment.toml", f"{NAMES[0]}/result.json", "sweep.json",
    ]  # fmt: skip
    kept, ran = (read_experiment(folder / NAMES[0] / "experiment.toml") for folder in (runs, sweep))
    assert kept == ran.model_copy(update={"data_root": None, "out": Path("runs/small") / NAMES[0]})
    (result,) = find_results([runs])
    assert result.method == "solo"


def test_what_was_kept_before_stays(sweep: Path, tmp_path: Path) -> None:
    keep(sweep, tmp_path / "kept")
    (sweep / NAMES[0] / "result.json").unlink()
    shutil.copyfile(HERE / NAMES[1] / "result.json", sweep / NAMES[1] / "result.json")
    keep(sweep, tmp_path / "kept")
    assert {r.method for r in find_results([tmp_path / "kept" / "runs"])} == {"solo", "fccl+"}
    assert set(json.loads((tmp_path / "kept" / "runs" / "sweep.json").read_text())["runs"]) == set(NAMES)


def test_a_folder_that_is_no_sweep_is_named(tmp_path: Path) -> None:
    for content in (None, "{}", "[]"):
        if content:
            (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(UsageError, match="is not the folder of a sweep"):
            keep(tmp_path, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
