"""The queue: runs that span several stretches, travel between machines, and end in results/ with the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from tools.gpu_queue import stretch
from tools.gpu_queue.__main__ import main
from tools.gpu_queue.merge import merge
from tools.gpu_queue.stretch import run_stretch
from tools.gpu_queue.tasks import Place, Queue, Task, plan, progress_of, read_queue, tasks_of
from tools.gpu_queue.travel import load_state, save_state, state_groups

from fedchoir import run
from fedchoir.utils.errors import Interrupted, UsageError


@pytest.fixture
def rounds_take_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A clock that moves with the rounds: a stretch ends in the middle of a run, before a checkpoint is due. The rounds
    that ran."""
    clock, seen = [0.0], []

    def watch(job: Any, status: dict[str, Any]) -> None:
        if status["event"] == "round":
            clock[0] += 20.1
            seen.append(f"{job.label} {status['round']}")

    monkeypatch.setattr(stretch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(stretch, "print_status", watch)
    return seen


def numbers(folder: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {"accuracy": [event["accuracy"] for event in events], "losses": [event["losses"] for event in events]}


def test_runs_span_stretches_and_machines_with_the_numbers_of_an_unbroken_run(
    queue_file: Path, tmp_path: Path, rounds_take_twenty_seconds: list[str]
) -> None:
    """A stretch begins to stop after its first round; the round at hand is finished, so each makes one or two."""
    queue = read_queue(queue_file)
    state = tmp_path / "state0"
    ends = [0]
    for number in range(1, 9):
        tasks = tasks_of(queue, state)
        outcomes = run_stretch(tasks, minutes=1, processes=1, margin=45)
        ends.append(len(rounds_take_twenty_seconds))
        assert {outcome.state for outcome in outcomes} <= {"finished", "stopped", "waiting"}
        if all(task.finished for task in tasks):
            break
        assert ends[-1] > ends[-2], "a stretch made no progress"
        # the next stretch is on another machine: results and checkpoints travel in small parts
        bundle, moved = tmp_path / f"bundle{number}", tmp_path / f"state{number}"
        assert len(save_state(tasks, state, bundle, part=4096, limit=1e9)[0]) > 2
        load_state(bundle, moved)
        state = moved
    assert len(ends) >= 4, "a stretch did not end"
    assert rounds_take_twenty_seconds == [f"{method} {index}" for method in ("fedmd", "fccl") for index in range(3)]
    tasks = tasks_of(queue, state)
    for task in tasks:
        whole = task.job.experiment.model_copy(update={"out": tmp_path / f"whole-{task.job.label}", "pretrained": None})
        run(whole)
        assert numbers(task.job.out) == numbers(tmp_path / f"whole-{task.job.label}")
    results = tmp_path / "results"
    assert merge(tasks, results) == {"tiny-fedmd": 1, "tiny-fccl": 1}
    record = json.loads((results / "tiny-fccl" / "runs.jsonl").read_text())
    assert (record["label"], record["method"]) == ("fccl", "fccl")
    assert str(tmp_path) not in json.dumps(record)  # nothing about this machine
    assert (results / "tiny-fccl" / "sweep.toml").exists()
    assert "tiny-fccl: 1 of 1 runs, 0 min left" in plan(queue.row, tasks)
    assert not any(group.what.startswith("checkpoint of") for group in state_groups(tasks, state))  # all is finished
    kept = [
        Task(task.job, tuple(Place(row.model_copy(update={"keep": True}), job) for row, job in task.places))
        for task in tasks
    ]
    assert any(group.what.startswith("checkpoint of") for group in state_groups(kept, state))


def test_as_many_runs_as_fit_in_the_order_of_the_queue(
    queue_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(read_queue(queue_file), tmp_path / "state")
    began: list[str] = []

    def watch(job: Any, status: dict[str, Any]) -> None:
        if status["event"] == "began":
            began.append(job.label)

    monkeypatch.setattr(stretch, "print_status", watch)
    outcomes = run_stretch(tasks, minutes=5, processes="auto", margin=1)
    assert [outcome.state for outcome in outcomes] == ["finished", "finished"]
    assert began == ["fedmd", "fccl"]


def shell(script: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, env=environment).stdout


def test_a_bundle_has_code_data_and_a_script_that_unpacks_it(
    queue_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "root"
    data.mkdir()
    (data / "mnist.npz").write_bytes(b"x" * 100)
    values = read_queue(queue_file).model_dump(mode="json")
    values["row"][0]["data"] = ["mnist.npz"]
    queue_file.write_text(tomli_w.dumps({"row": [{k: v for k, v in row.items() if v} for row in values["row"]]}))
    common = ["--queue", str(queue_file), "--state", str(tmp_path / "s"), "--out", str(tmp_path / "b")]
    main(["pack", *common, "--data-root", str(data), "--part", "0.25"])
    parts = list((tmp_path / "b").glob("bundle-*"))
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 0.25 * 2**20
    there = tmp_path / "the other machine"
    shown = shell(f"bash '{tmp_path / 'b' / 'setup.sh'}' '{there}'")
    assert (there / "data" / "mnist.npz").read_bytes() == b"x" * 100
    assert not list(there.rglob("runs.jsonl"))
    with (there / "src" / "fedchoir" / "__init__.py").open("a") as code:  # another fedchoir is installed here
        code.write('\nprint("imported:", __file__)\n')
    planned = shell(f"{shown}\n{sys.executable} -m tools.gpu_queue plan --first 1 --state state").splitlines()
    assert planned[0] == f"imported: {there / 'src' / 'fedchoir' / '__init__.py'}"
    assert planned[-1].endswith("minutes of one run at a time")
    with pytest.raises(SystemExit) as error:
        main(["pack", *common])
    assert error.value.code == 2
    assert "mnist.npz is not in the data root" in capsys.readouterr().err


def test_results_are_read_though_a_part_of_the_checkpoints_is_missing(
    queue_file: Path, tmp_path: Path, rounds_take_twenty_seconds: list[str]
) -> None:
    tasks = tasks_of(read_queue(queue_file), tmp_path / "state")
    run_stretch(tasks, minutes=0.75, processes=1, margin=30)
    made, _ = save_state(tasks, tmp_path / "state", tmp_path / "back", part=4096, limit=1e9)
    parts = [path for path in made if path.name.startswith("checkpoints-")]
    assert len(parts) > 1
    parts[0].unlink()
    (problem,) = load_state(tmp_path / "back", tmp_path / "there").problems
    assert f"of which part 1 of {len(parts)} is missing" in problem
    loaded = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*")}
    run_folder = tasks[0].job.out.relative_to(tmp_path / "state").as_posix()
    assert f"{run_folder}/events.jsonl" in loaded
    assert any("/logs/" in name for name in loaded)  # that of an unfinished run
    assert not any("checkpoint/" in name for name in loaded)
    with pytest.raises(UsageError, match=r"has no results-ID-1-of-N\.tar\.xz"):
        load_state(tmp_path, tmp_path / "there")


def test_nothing_starts_at_the_end_of_a_stretch(
    queue_file: Path, tmp_path: Path, rounds_take_twenty_seconds: list[str]
) -> None:
    """The first run ends after 60 of 100 seconds, and one that would start then had no time for a round."""
    tasks = tasks_of(read_queue(queue_file), tmp_path / "state")
    outcomes = run_stretch(tasks, minutes=100 / 60, processes=1, margin=35)
    assert [outcome.state for outcome in outcomes] == ["finished", "waiting"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_at_the_end_of_a_stretch(
    signals: int, queue_file: Path, tmp_path: Path, rounds_take_twenty_seconds: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The clock has asked the runs to end their round. The first signal asks the same, and only the second one kills;
    the plan is shown in both cases."""
    sent: list[int] = []
    ask = stretch.Stretch._ask_to_stop

    def asked(self: stretch.Stretch) -> None:
        ask(self)
        while len(sent) < signals:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stretch.Stretch, "_ask_to_stop", asked)
    command = [
        "run",
        "--queue",
        str(queue_file),
        "--state",
        str(tmp_path / "state"),
        "--minutes",
        "1",
        "--margin",
        "45",
    ]
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code: Any = 0
    try:
        main(command)
    except (SystemExit, Interrupted) as end:
        code = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == (0 if signals == 1 else 143)
    printed = capsys.readouterr().out
    assert "tiny-fedmd: 0 of 1 runs" in printed
    assert ("killed: " in printed) == (signals == 2)
    (saved,) = (progress_of(task.job.out).saved for task in tasks_of(read_queue(queue_file, 1), tmp_path / "state"))
    assert saved == (len(rounds_take_twenty_seconds) if signals == 1 else 0)


def test_only_the_first_rows(queue_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--queue", str(queue_file), "--state", str(tmp_path / "state"), "--first", "1"])
    printed = capsys.readouterr().out
    assert "tiny-fedmd: 0 of 1 runs" in printed
    assert "tiny-fccl" not in printed


def test_the_queue_of_this_repository_plans_to_the_last_run() -> None:
    queue = read_queue(Path(__file__).parents[2] / "results" / "queue.toml")
    tasks = tasks_of(queue, Path("runs/queue"))
    assert {task.row.section for task in tasks} == {row.section for row in queue.row}
    assert all(task.row.why and task.row.data for task in tasks)
    assert len({task.job.out for task in tasks}) == len(tasks)


def test_an_unknown_field_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text('[[row]]\nsweep = "a.toml"\nsection = "a"\nwhy = "b"\nmintues = 3\n')
    with pytest.raises(UsageError, match="mintues"):
        read_queue(path)
    assert isinstance(Queue(row=[{"sweep": "a", "section": "b", "why": "c"}]), Queue)
