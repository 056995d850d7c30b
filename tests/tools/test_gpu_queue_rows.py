"""Rows that share runs or differ in them: what is run, and what each section keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.fake_results import write_run
from tools.gpu_queue.merge import merge
from tools.gpu_queue.tasks import Queue, Row, plan, tasks_of

from fedchoir.experiments.sweep import Job
from fedchoir.reporting.store import read_records
from fedchoir.utils.errors import UsageError


@pytest.fixture
def row(tmp_path: Path) -> Any:
    """A row whose sweep has these variants."""

    def make(section: str, variants: list[dict[str, Any]], **more: Any) -> Row:
        path = tmp_path / f"{section}-{len(list(tmp_path.glob('*.toml')))}.toml"
        path.write_text(tomli_w.dumps({"title": section, "variant": variants}))
        return Row(sweep=path, section=section, why="a test", **more)

    return make


def finish(job: Job) -> None:
    """As if the job had run."""
    write_run(job.out, job.experiment.method, 0, rounds=2)
    (job.out / "experiment.toml").write_text(job.experiment.to_toml())


def stored(section: Path) -> list[tuple[str, str, str]]:
    return [(record["name"], record["label"], record["method"]) for record in read_records(section / "runs.jsonl")]


def test_a_run_that_two_rows_have_is_run_once_and_kept_by_both(row: Any, tmp_path: Path) -> None:
    """Each section under its own label and published row, in the order of its own sweep."""
    named = {"method": "solo", "label": "alone", "published": "fccl+/table8:solo"}
    first, second = row("one", [{"method": "fccl"}, {"method": "solo"}]), row("two", [{"method": "fedmd"}, named])
    queue = Queue(row=[second, first])
    tasks = tasks_of(queue, tmp_path / "state")
    assert [task.job.label for task in tasks] == ["fedmd", "alone", "fccl"]
    for task in tasks[1:]:
        finish(task.job)
    assert merge(tasks, tmp_path / "results") == {"two": 1, "one": 2}
    assert stored(tmp_path / "results" / "one") == [
        ("digits-lite-fccl-seed0", "fccl", "fccl"),
        ("digits-lite-solo-seed0", "solo", "solo"),
    ]
    assert stored(tmp_path / "results" / "two") == [("digits-lite-alone-seed0", "alone", "solo")]
    (alone,), (_, solo) = (read_records(tmp_path / "results" / name / "runs.jsonl") for name in ("two", "one"))
    assert alone.pop("published") == ["fccl+/table8:solo"]
    assert "published" not in solo
    assert {**alone, "name": "", "label": ""} == {**solo, "name": "", "label": ""}
    lines = plan(queue.row, tasks).splitlines()
    assert lines[0].startswith("two: 1 of 2 runs, 10 min left")
    assert lines[1].startswith("one: 2 of 2 runs, 1 of them in rows above, 0 min left")


def test_a_new_section_is_stored_in_the_order_of_its_sweep(row: Any, tmp_path: Path) -> None:
    """Though the queue runs its last row first."""
    variants = [{"method": method} for method in ("solo", "fedmd", "fccl")]
    both = row("one", variants)
    tasks = tasks_of(Queue(row=[both.model_copy(update={"only": ("fccl",)}), both]), tmp_path / "state")
    for task in tasks:
        finish(task.job)
    assert [task.job.label for task in tasks] == ["fccl", "solo", "fedmd"]
    merge(tasks, tmp_path / "results")
    assert [label for _, label, _ in stored(tmp_path / "results" / "one")] == ["solo", "fedmd", "fccl"]


def test_records_that_are_stored_stay(row: Any, tmp_path: Path) -> None:
    tasks = tasks_of(Queue(row=[row("one", [{"method": "solo"}, {"method": "fedmd"}])]), tmp_path / "state")
    finish(tasks[1].job)
    merge(tasks, tmp_path / "results")
    (tasks[1].job.out / "result.json").unlink()
    finish(tasks[0].job)
    merge(tasks, tmp_path / "results")
    assert [label for _, label, _ in stored(tmp_path / "results" / "one")] == ["solo", "fedmd"]


@pytest.mark.parametrize("order", [[1, 0], [1]])
def test_a_finished_run_is_not_run_again_when_rows_move_or_go(order: list[int], row: Any, tmp_path: Path) -> None:
    rows = [row("one", [{"method": "solo"}]), row("two", [{"method": "solo", "label": "alone"}])]
    (task,) = tasks_of(Queue(row=rows), tmp_path / "state")
    finish(task.job)
    (again,) = tasks_of(Queue(row=[rows[k] for k in order]), tmp_path / "state", device="cpu")
    assert again.finished
    assert merge([again], tmp_path / "results")["two"] == 1
    assert stored(tmp_path / "results" / "two") == [("digits-lite-alone-seed0", "alone", "solo")]


def test_two_different_runs_with_one_name_in_a_section_are_refused(row: Any, tmp_path: Path) -> None:
    rows = [row("one", [{"method": "solo"}]), row("one", [{"method": "solo", "rounds": 7}])]
    with pytest.raises(UsageError) as error:
        tasks_of(Queue(row=rows), tmp_path / "state")
    assert f"row 1 ({rows[0].sweep}) and row 2 ({rows[1].sweep})" in str(error.value)
    assert "both called one/digits-lite-solo-seed0" in str(error.value)


def test_every_section_of_this_repository_gets_all_runs_of_its_rows() -> None:
    from tools.gpu_queue.tasks import read_queue

    queue = read_queue(Path(__file__).parents[2] / "results" / "queue.toml")
    kept: dict[str, set[str]] = {}
    for task in tasks_of(queue, Path("runs/queue")):
        for place in task.places:
            kept.setdefault(place.row.section, set()).add(place.job.name)
    assert {name: len(kept[name]) for name in ("fccl-fig8", "fedct-recipe", "fedct-assignment")} == {
        "fccl-fig8": 18,
        "fedct-recipe": 54,
        "fedct-assignment": 60,
    }
    assert len([name for name in kept["choir"] if name.startswith("digits-")]) == 75


def test_labels_of_a_run_in_the_folder_of_another_row(row: Any, tmp_path: Path) -> None:
    """The folder of a section in the state can be shown as a sweep: it has the labels of the runs that lie there."""
    from tools.gpu_queue.stretch import run_stretch

    rows = [row("one", [{"method": "solo"}]), row("two", [{"method": "solo", "label": "alone"}])]
    tasks = tasks_of(Queue(row=rows), tmp_path / "state")
    finish(tasks[0].job)
    run_stretch(tasks, minutes=5, processes=1)
    manifest = json.loads((tmp_path / "state" / "one" / "sweep.json").read_text())
    assert manifest["runs"] == {"digits-lite-solo-seed0": "solo"}
    assert not (tmp_path / "state" / "two").exists()
