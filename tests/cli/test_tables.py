"""compare, sweep and reproduce."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from tests.fake_results import write_comparison, write_run

Command = Callable[..., tuple[int, str, str]]
SMALL = {"image_size": 16, "local_epochs": 1, "local_batch": 16, "public_size": 16, "public_batch": 8}


def test_dry_run_lists_and_writes_nothing(tmp_path: Path, fedchoir: Command) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(tomli_w.dumps({"base": {"scenario": "digits-lite"}, "grid": {"method": ["solo", "fedmd"]}}))
    code, out, _ = fedchoir("sweep", str(path), "--out", str(tmp_path / "x"), "--seeds", "2", "--dry-run")
    assert code == 0
    assert len([line for line in out.splitlines() if "-seed" in line]) == 4
    assert not (tmp_path / "x").exists()
    code, out, _ = fedchoir("reproduce", "fccl+/table8", "--scenario", "digits-lite", "--dry-run")
    assert out.count("seed0") == out.count("seed2") == 7  # three seeds, unless --seeds is given
    assert code == 0
    assert "digits-lite-fccl+-seed0" in out
    assert "21 runs" in out
    code, _, err = fedchoir("reproduce", "fccl+/table80")
    assert (code, err.count("\n")) == (2, 1)
    assert "nearest: fccl+/table8" in err
    assert "fedfoa/table3" in fedchoir("reproduce", "--list")[1]


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("fedct/recipe", 54), ("fedct/tuning", 32), ("fedct/headline", 80), ("fedct/headline-full", 30),
        ("fedct/assignment", 60), ("fedct/cifar100", 80), ("fedct/fig5", 24), ("fedct/table4", 18),
        ("fedfoa/centralized", 3), ("fedfoa/settle", 30), ("fedfoa/controls", 18), ("fedfoa/fedema", 42),
        ("fedfoa/long", 27),
    ],
)  # fmt: skip
def test_the_prepared_experiments_of_fedct_and_fedfoa_plan(name: str, runs: int, fedchoir: Command) -> None:
    path = Path(__file__).parents[2] / "experiments" / f"{name}.toml"
    code, out, err = fedchoir("sweep", str(path), "--dry-run")
    assert code == 0, err
    assert f"{runs} runs" in out


def test_sweep_files_of_two_sections_do_not_share_a_folder(fedchoir: Command) -> None:
    """Both have a run that is called digits-solo-seed0, and they are not the same run."""
    results = Path(__file__).parents[2] / "results"
    for section in ("digits", "homogeneous"):
        code, out, _ = fedchoir("sweep", str(results / section / "sweep.toml"), "--only", "solo", "--dry-run")
        assert code == 0
        assert f"runs/{section}/" in out.replace("\n", "")
        assert "digits-solo-seed0" in out


def test_a_table_on_other_data_from_the_command_line(
    tmp_path: Path, fedchoir: Command, shapes: Path, public_shapes: Path
) -> None:
    """reproduce: runs, then ours beside the paper's; a CSV on standard output stands alone."""
    arguments = ["reproduce", "fccl+/table8", "--scenario", str(shapes), "--public", str(public_shapes), "--models"]
    arguments += [
        "simple_cnn@4,mlp",
        "--rounds",
        "1",
        "--only",
        "fedmd",
        "--out",
        str(tmp_path / "t8"),
        "--device",
        "cpu",
        "--seeds",
        "1",
    ]
    arguments += [part for k, v in SMALL.items() for part in ("--set", f"{k}={v}")]
    code, out, err = fedchoir(*arguments, "--format", "csv")
    assert code == 0
    assert out.startswith("setting,label,method")
    assert "26.38" in out
    assert "1 finished" in err
    code, out, _ = fedchoir("compare", str(tmp_path / "t8"))
    assert "for orientation only" in " ".join(out.split())


@pytest.mark.slow
def test_a_sweep_that_decides_itself_how_many_runs_start(
    tmp_path: Path, fedchoir: Command, shapes: Path, public_shapes: Path
) -> None:
    path, out = tmp_path / "grid.toml", tmp_path / "out"
    base = {"scenario": str(shapes), "public": str(public_shapes), "models": "simple_cnn@4", "rounds": 1}
    values = {"base": {**base, "device": "cpu", "settings": SMALL}, "grid": {"method": ["solo", "fedmd"]}}
    path.write_text(tomli_w.dumps(values))
    code, printed, _ = fedchoir("sweep", str(path), "--out", str(out), "--seeds", "2", "--jobs", "auto")
    assert code == 0, printed
    assert "4 finished, 0 were finished before, 0 failed" in printed


@pytest.mark.parametrize("table", ["sweep", "reproduce"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "0"], "--jobs '0' is not possible: it should be how many runs at once, or auto"),
        (["--jobs", "all"], "--jobs 'all' is not possible: it should be how many runs at once, or auto"),
        (["--jobs", "auto", "--slurm", "local"], "--jobs auto is for runs on this machine; with --slurm give a number"),
        (["--jobs", "0", "--slurm", "local"], "--jobs '0' is not possible"),
    ],
)
def test_wrong_numbers_of_jobs_are_one_line(
    table: str, options: list[str], message: str, tmp_path: Path, fedchoir: Command
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(tomli_w.dumps({"base": {"scenario": "digits-lite"}, "grid": {"method": ["solo"]}}))
    what = [str(path)] if table == "sweep" else ["fccl+/table8", "--scenario", "digits-lite"]
    code, _, err = fedchoir(table, *what, "--out", str(tmp_path / "out"), *options)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven methods with three seeds."""
    return write_comparison(tmp_path_factory.mktemp("comparison"), rounds=6)


def words(text: str) -> str:
    return " ".join(text.split())


def test_compare_shows_differences_to_solo_or_another_row(comparison: Path, fedchoir: Command) -> None:
    code, out, _ = fedchoir("compare", str(comparison), "--format", "md")
    assert code == 0
    assert "inter % minus solo**" in out
    assert "better" in out
    code, out, _ = fedchoir("compare", str(comparison), "--format", "md", "--against", "fccl+")
    assert code == 0
    assert "inter % minus fccl+**" in out
    assert "worse" in out
    code, out, _ = fedchoir("compare", str(comparison))
    assert "excludes zero" in words(out)


def test_one_seed_has_no_interval(tmp_path: Path, fedchoir: Command) -> None:
    for method in ("solo", "fccl"):
        write_run(tmp_path / method, method, 0, rounds=3)
    assert "one seed: no interval" in fedchoir("compare", str(tmp_path), "--format", "md")[1]


def test_the_worth_of_the_best_round(comparison: Path, fedchoir: Command) -> None:
    code, out, _ = fedchoir("compare", str(comparison), "--best-round-habit")
    assert code == 0
    assert "The best test round is not a valid result" in words(out)
    code, out, _ = fedchoir("compare", str(comparison), "--best-round-habit", "--format", "csv")
    assert "inter_best_round_worth" in out.splitlines()[0]


def test_cost_has_the_budget_of_a_client(comparison: Path, fedchoir: Command) -> None:
    assert "budget of one client, whole run" in words(fedchoir("compare", str(comparison), "--cost")[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "nobody"], "--against: no row is called 'nobody'; there are solo, fedmd"),
        (["--cost", "--best-round-habit"], "--cost and --best-round-habit are two different tables"),
        (["--per-client", "--against", "solo"], "--against is not possible with --per-client"),
    ],
)
def test_mistakes_are_one_line(comparison: Path, fedchoir: Command, options: list[str], message: str) -> None:
    code, _, err = fedchoir("compare", str(comparison), *options)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
