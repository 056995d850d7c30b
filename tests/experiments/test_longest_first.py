"""The order of a sweep's runs with ``--jobs auto``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedchoir import run
from fedchoir.experiments.longest_first import LongestFirst
from fedchoir.experiments.placement import kind_of
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep


def finish(job: Job, seconds: float) -> None:
    """Leave the files of a run that took so long."""
    job.out.mkdir(parents=True)
    (job.out / "experiment.toml").write_text(job.experiment.to_toml())
    (job.out / "result.json").write_text(json.dumps({"seconds": {"total": seconds}}))


def names(jobs: list[Job]) -> list[str]:
    return [f"{job.experiment.method}{job.experiment.seed}" for job in jobs]


def test_longer_kinds_start_first_and_unknown_ones_before_them(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    jobs = jobs_of(read_sweep(sweep_of(method=["solo", "fedmd", "fccl", "fccl+"])), tmp_path / "out")
    order = LongestFirst()
    assert order(jobs) == jobs  # nothing is known
    finish(jobs[0], 3.0)
    assert names(order(jobs)) == ["fedmd0", "fccl0", "fccl+0", "solo0"]
    finish(jobs[1], 5.0)
    finish(jobs[3], 4.0)
    assert names(order(jobs)) == ["fccl0", "fedmd0", "fccl+0", "solo0"]
    assert order([]) == []


def test_seeds_of_one_kind_share_their_time(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    file = read_sweep(sweep_of(method=["solo", "fedmd"])).model_copy(update={"seeds": (0, 1, 2)})
    jobs = jobs_of(file, tmp_path / "out")
    finish(jobs[0], 3.0)
    finish(jobs[3], 5.0)
    left = [job for job in jobs if job not in (jobs[0], jobs[3])]
    assert names(LongestFirst()(left)) == ["fedmd1", "fedmd2", "solo1", "solo2"]


def test_a_folder_that_cannot_be_read_is_of_unknown_time(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    jobs = jobs_of(read_sweep(sweep_of(method=["solo", "fedmd"])), tmp_path / "out")
    finish(jobs[1], 5.0)
    for number, text in enumerate(("{", "[]", "{}", '{"seconds": {"total": null}}')):
        folder = tmp_path / "out" / f"broken{number}"
        folder.mkdir()
        (folder / "experiment.toml").write_text(jobs[0].experiment.to_toml())
        (folder / "result.json").write_text(text)
    assert names(LongestFirst()(jobs)) == ["solo0", "fedmd0"]


def test_a_run_that_has_finished_is_of_the_kind_that_its_sweep_file_names(
    sweep_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Its experiment is read from the file that the run wrote."""
    (job,) = jobs_of(read_sweep(sweep_of(method=["solo"], rounds=1)), tmp_path / "out")
    run(job.experiment)
    order = LongestFirst()
    order([job])
    assert list(order._seconds) == [kind_of(job.experiment)]
