"""Every table, published or our own: its file plans to the last run, moves to other data, and is installed too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedchoir import Experiment, Result
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.reproduce import folder, path_of, runs_of, table_with_runs, tables
from fedchoir.experiments.sweep import Overrides, jobs_of, read_sweep

ROOT = Path(__file__).parents[2]
WANTED = {
    "fccl+": [*(f"table{n}" for n in range(8, 20)), "fig9", "fig10"],
    "fccl": ["table1", "table2", "table3", "fig7", "fig8"],
    "fbcl": [f"table{n}" for n in range(2, 6)],
    "fedct": [
        "table1",
        "table3",
        "table4",
        "table5",
        "table6",
        "fig4",
        "fig5",
        "fig6",
        "fig7",
        "recipe",
        "tuning",
        "headline",
        "headline-full",
        "assignment",
        "cifar100",
    ],
    "choir": ["digits", "office-caltech"],
    "fedfoa": [
        "table1",
        "table2",
        "table3",
        "fig4",
        "fig5",
        "fig6",
        "centralized",
        "settle",
        "controls",
        "fedema",
        "long",
    ],
    "flamby": ["heart"],
    "all-methods": ["digits"],
}


def test_one_file_for_each_table() -> None:
    assert set(tables()) == {f"{paper}/{name}" for paper, names in WANTED.items() for name in names}
    assert folder() == ROOT / "experiments"
    assert tables().index("fccl+/table9") < tables().index("fccl+/table10")


@pytest.mark.parametrize("table", tables())
def test_every_run_plans(table: str) -> None:
    """`jobs_of` plans each run; here we look at what that came to."""
    file = read_sweep(path_of(table))
    assert file.title
    made = jobs_of(file, Path("runs"))
    assert len({job.name for job in made}) == len(made)
    for job in made:
        plan = make_plan(job.experiment)
        rounds = job.experiment.rounds or plan.rounds  # FedCT's Figure 5 averages less often than it has rounds
        assert rounds >= 40 or table == "flamby/heart"  # FLamby trains a logistic regression, in 15 rounds or one
        assert plan.experiment.profile == (
            "fixed" if table.startswith(("choir/", "flamby/", "all-methods/")) else "paper"
        )
        assert Experiment(**tomllib.loads(job.experiment.to_toml())) == job.experiment


@pytest.mark.parametrize("table", tables())
def test_every_table_can_be_tried_on_the_embedded_data(table: str) -> None:
    for job in jobs_of(read_sweep(path_of(table)), Path("runs"), Overrides(scenario="digits-lite", seeds=(0,))):
        plan = make_plan(job.experiment)
        assert plan.public in (None, "photos")
        assert plan.experiment.scenario == "digits-lite"
        assert all("@" in model for model in plan.models), "a model of full width on a laptop"


def test_tables_that_share_their_runs_do_not_run_them_twice() -> None:
    assert table_with_runs("fccl+/table9") == "fccl+/table8"
    assert runs_of("fccl+/table9") == runs_of("fccl+/table8")
    assert (table_with_runs("fccl/table2"), table_with_runs("fbcl/table3")) == ("fccl/table1", "fbcl/table2")


def test_the_row_fccm_of_the_ablation_is_fccl(small: Callable[..., Experiment], play: Callable[..., Result]) -> None:
    """Table 10 says FCCM where the main table says FCCL, and prints the same numbers; so do we."""
    row = next(job.experiment.settings for job in runs_of("fccl+/table10") if job.label == "FCCM")
    settings: dict[str, Any] = {**row, "pretrain_epochs": 2}
    ablation = play("fccl+", "fccm", rounds=2, settings=settings)
    assert ablation.accuracy == play("fccl", "fccl", rounds=2, settings={"pretrain_epochs": 2}).accuracy
    without = play("fccl+", "none", rounds=2, settings={**settings, "regulariser": "none"})
    assert ablation.accuracy != without.accuracy


def test_an_installed_package_has_them(tmp_path: Path) -> None:
    """The step of ``pip install .`` that copies them into the package."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    shutil.copy(ROOT / "setup.py", tmp_path)
    command = [sys.executable, "setup.py", "-q", "build_py", "-d", "built"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    installed = tmp_path / "built" / "fedchoir" / "experiments" / "tables"
    found = {str(path.relative_to(installed).with_suffix("")) for path in installed.rglob("*.toml")}
    assert found == set(tables())
