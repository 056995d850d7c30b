"""docs/results.md says what the files under results/ say, and nothing else."""

from __future__ import annotations

import re
import shutil
import statistics
import tomllib
from pathlib import Path

import pytest

from fedchoir.core.result import load_result, read_events
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.reporting.results_page import course, page, spent, still_open
from fedchoir.reporting.run_groups import extra, find_results
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def test_the_page_is_what_the_files_make_it() -> None:
    written = (ROOT / "docs" / "results.md").read_text()
    assert written == page(RESULTS), "docs/results.md is not what results/ gives: run `make results`"


def test_every_accuracy_on_the_page_is_a_mean_of_kept_runs() -> None:
    """Recomputed here without the report's code, from result.json alone."""
    page_text = (ROOT / "docs" / "results.md").read_text()
    shown = {float(m) for m in re.findall(r"(\d+\.\d\d) ± \d+\.\d\d", page_text)}
    runs = [load_result(path.parent) for path in RESULTS.rglob("result.json") if "validation" not in path.parts]
    bundles: dict[str, list[float]] = {}
    for run in runs:
        models = [client["model"] for client in run.clients]
        settings = sorted(run.settings.items(), key=str)
        key = f"{run.method} {run.scenario} {run.public} {run.profile} {models} {settings}"
        bundles.setdefault(f"intra {key}", []).append(run.intra_avg)
        if run.inter_avg is not None:
            bundles.setdefault(f"inter {key}", []).append(run.inter_avg)
    ours = {round(sum(values) / len(values), 2) for values in bundles.values()}
    printed_by_papers = {float(m) for m in re.findall(r"(\d+\.\d\d) ± \d+\.\d\d \(", page_text)}
    assert ours
    assert ours <= shown
    assert shown - printed_by_papers <= ours


def test_every_run_has_its_experiment_beside_it() -> None:
    """And it tells nothing of the machine that it ran on."""
    for path in RESULTS.rglob("result.json"):
        told = tomllib.loads((path.parent / "experiment.toml").read_text())
        assert "data_root" not in told
        assert not Path(told.get("out", "runs")).is_absolute()


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/sweep.toml")), ids=lambda file: file.parent.name)
def test_the_sweep_file_says_what_was_run(file: Path) -> None:
    """So that the command below a table makes its rows again, those and no others: every run of the file is kept, with
    all its seeds, under the same name, and nothing of it is set otherwise."""
    jobs = {job.name: job for job in jobs_of(read_sweep(file), Path("runs"))}
    kept = find_results([file.parent / "runs"])
    assert {Path(extra(result, "folder")).name for result in kept} == set(jobs)
    for result in kept:
        job = jobs[Path(extra(result, "folder")).name]
        plan = make_plan(job.experiment)
        models = tuple(client["model"] for client in result.clients)
        found = (
            extra(result, "label"),
            result.method,
            result.profile,
            result.public,
            result.rounds,
            result.seed,
            models,
        )
        told = job.experiment
        wanted = tuple(plan.models[k % len(plan.models)] for k in range(len(models)))
        assert found == (job.label, told.method, told.profile, plan.public, plan.rounds, told.seed, wanted)
        settings = plan.params.model_dump(mode="json")
        assert {k: v for k, v in result.settings.items() if k in settings and v != settings[k]} == {}


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/open.toml")), ids=lambda file: file.parent.name)
def test_an_open_question_can_be_run_and_has_not_been(file: Path) -> None:
    """With the same base as the rows that were, and the page names it."""
    asked, run = read_sweep(file), read_sweep(file.with_name("sweep.toml"))
    assert (asked.base, asked.seeds) == (run.base, run.seeds)
    names = {job.name for job in jobs_of(asked, Path("runs"))}
    assert not names & {job.name for job in jobs_of(run, Path("runs"))}
    told = still_open(file)
    assert all(variant["label"] in told for variant in asked.variant)
    assert told in (ROOT / "docs" / "results.md").read_text()


def test_run_time_is_told_device_by_device() -> None:
    results = find_results([RESULTS / "digits" / "runs"])
    own = [result for result in results if result.device == "NVIDIA H200"]
    minutes = sum(result.seconds["total"] for result in own) / 60
    assert 0 < len(own) < len(results)
    assert f"{len(own)} on NVIDIA H200 ({minutes:.0f} minutes), " in spent(results)


def test_a_changed_result_changes_the_page(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    victim = next(copy.glob("*/runs/*/result.json"))
    victim.write_text(re.sub(r'"intra_avg": [\d.]+', '"intra_avg": 99.0', victim.read_text()))
    assert page(copy) != page(RESULTS)


def test_a_picture_shows_the_rounds_that_are_kept() -> None:
    runs = RESULTS / "digits" / "runs"
    (drawn,) = course(find_results([runs]), ["fccl+"])
    told = [read_events(runs / f"digits-fccl+-seed{seed}" / "events.jsonl")[9] for seed in range(3)]
    inter = [event["inter_avg"] for event in told]
    at_ten = drawn["inter"][drawn["rounds"].index(10)]
    assert at_ten == pytest.approx([statistics.mean(inter), statistics.stdev(inter)])
    with pytest.raises(UsageError, match="no rounds are kept of fedmd"):
        course(find_results([RESULTS / "digits-lite" / "runs"]), ["fedmd"])


def test_every_picture_on_the_page_is_there() -> None:
    shown = re.findall(r"\]\((assets/[^)]+)\)", (ROOT / "docs" / "results.md").read_text())
    assert shown
    assert all((ROOT / "docs" / path).is_file() for path in shown)


def test_a_section_without_a_description_is_named(tmp_path: Path) -> None:
    (tmp_path / "nameless").mkdir()
    with pytest.raises(UsageError, match=r"nameless.about\.toml"):
        page(tmp_path)
