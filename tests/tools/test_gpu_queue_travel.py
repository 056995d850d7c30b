"""What travels: nothing is lost in silence, nothing newer is overwritten, and nothing of two archives is mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.fake_results import write_run
from tools.gpu_queue.__main__ import main
from tools.gpu_queue.tasks import Task, progress_of, read_queue, tasks_of
from tools.gpu_queue.travel import load_state, save_state, state_groups

from fedchoir.experiments.scheduler import lock_of
from fedchoir.utils.errors import UsageError


@pytest.fixture
def tasks(queue_file: Path, tmp_path: Path) -> list[Task]:
    return tasks_of(read_queue(queue_file), tmp_path / "state")


def run_to(task: Task, rounds: int, *, saved: int = 0, mark: str = "") -> Path:
    """As if the run had made so many of its four rounds and written a checkpoint of some. ``mark`` is in its files."""
    folder = task.job.out
    shutil.rmtree(folder, ignore_errors=True)
    write_run(folder, task.job.experiment.method, 0, rounds=4, done=rounds)
    (folder / "experiment.toml").write_text(task.job.experiment.to_toml())
    (folder / "task.json").write_text(json.dumps(mark))
    if saved:
        newest = folder / "checkpoint" / f"round-{saved - 1:05d}"
        newest.mkdir(parents=True)
        (newest / "server.safetensors").write_text(mark)
        pointer = {"folder": newest.name, "round": saved - 1, "sha256": ""}
        (folder / "checkpoint" / "latest.json").write_text(json.dumps(pointer))
    return folder


def save(tasks: list[Task], out: Path, part: int = 2**20, limit: float = 1e9) -> list[str]:
    """The names of the files."""
    return [path.name for path in save_state(tasks, tasks[0].job.out.parents[1], out, part, limit)[0]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("there", "here"),
    [((2, 1), (4, 0)), ((2, 1), (3, 2)), ((3, 0), (2, 2)), ((4, 0), (4, 0))],
    ids=["finished here", "further here", "there without checkpoint", "finished on both"],
)
def test_what_is_further_here_stays_as_it_is(
    there: tuple[int, int], here: tuple[int, int], tasks: list[Task], tmp_path: Path
) -> None:
    task, state = tasks[0], tmp_path / "state"
    run_to(task, there[0], saved=there[1], mark="there")
    save(tasks, tmp_path / "back")
    before = contents(run_to(task, here[0], saved=here[1], mark="here"))
    loaded = load_state(tmp_path / "back", state)
    assert contents(task.job.out) == before
    assert (loaded.taken, len(loaded.behind + loaded.equal)) == ([], 1)
    if there != here:
        assert loaded.behind[0].startswith("tiny-fedmd/digits-lite-fedmd-seed0: here ")


@pytest.mark.parametrize(("there", "here"), [((4, 0), (2, 2)), ((3, 2), (3, 1)), ((3, 2), (4, 1))])
def test_what_is_further_there_replaces_the_whole_run(
    there: tuple[int, int], here: tuple[int, int], tasks: list[Task], tmp_path: Path
) -> None:
    """No file of the run that was here is left, so that none of another history can continue it."""
    task, state = tasks[0], tmp_path / "state"
    expected = contents(run_to(task, there[0], saved=there[1], mark="there"))
    save(tasks, tmp_path / "back")
    run_to(task, here[0], saved=here[1], mark="here")
    (task.job.out / "result.json").unlink(missing_ok=True)
    assert load_state(tmp_path / "back", state).taken == ["tiny-fedmd/digits-lite-fedmd-seed0"]
    assert contents(task.job.out) == expected
    assert not list(state.glob(".loading*"))


def test_a_checkpoint_to_keep_joins_its_finished_run(tasks: list[Task], tmp_path: Path) -> None:
    """When the part that was missing at the first time is there, too."""
    row = tasks[0].row.model_copy(update={"keep": True})
    task = Task(tasks[0].job, (tasks[0].places[0]._replace(row=row),))
    run_to(task, 4, saved=4)
    save([task], tmp_path / "back")
    shutil.rmtree(task.job.out / "checkpoint")
    assert load_state(tmp_path / "back", tmp_path / "state").taken
    assert progress_of(task.job.out) == (True, 4, 4)


def test_a_save_removes_nothing_of_the_one_before(tasks: list[Task], tmp_path: Path) -> None:
    """Of two in one folder, what is further is loaded, whichever comes first."""
    run_to(tasks[0], 2, saved=2)
    first = save(tasks, tmp_path / "back", part=1024)
    assert {name.split("-")[0] for name in first} == {"results", "checkpoints"}
    expected = contents(run_to(tasks[0], 4))
    second = save(tasks, tmp_path / "back", part=700)
    assert {name.split("-")[0] for name in second} == {"results"}
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == sorted([*first, *second])
    shutil.rmtree(tmp_path / "state")
    assert load_state(tmp_path / "back", tmp_path / "state").problems == []
    assert contents(tasks[0].job.out) == expected


@pytest.mark.parametrize("here", [1, 3, 4])
def test_a_run_with_other_settings_here_stays(
    here: int, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that a run may change when it continues, such as its folder and device, do not count."""
    run_to(tasks[0], 2, saved=2)
    run_to(tasks[1], 2, saved=2)
    save(tasks, tmp_path / "back")
    for task, changes in zip(tasks, ({"rounds": 9}, {"device": "cuda", "out": "another"}), strict=True):
        folder = run_to(task, here if task is tasks[0] else 1)
        experiment = task.job.experiment.model_copy(update=changes)
        (folder / "experiment.toml").write_text(experiment.to_toml())
    before = contents(tasks[0].job.out)
    with pytest.raises(SystemExit) as error:
        main(["load", str(tmp_path / "back"), "--state", str(tmp_path / "state")])
    assert error.value.code == 1
    printed = capsys.readouterr().out
    assert (
        "left out: tiny-fedmd/digits-lite-fedmd-seed0, which is another run here: rounds was 9 and is now 3" in printed
    )
    assert "1 runs loaded" in printed
    assert contents(tasks[0].job.out) == before
    assert progress_of(tasks[1].job.out).saved == 2


def test_a_run_whose_settings_are_damaged_stays(tasks: list[Task], tmp_path: Path) -> None:
    run_to(tasks[0], 2, saved=2)
    save(tasks, tmp_path / "back")
    (run_to(tasks[0], 1) / "experiment.toml").write_bytes(b"\xff")
    before = contents(tasks[0].job.out)
    (problem,) = load_state(tmp_path / "back", tmp_path / "state").problems
    assert "one experiment.toml cannot be read: " in problem
    assert contents(tasks[0].job.out) == before


def test_a_run_that_is_being_executed_stays(tasks: list[Task], tmp_path: Path) -> None:
    """Its process would go on to write into a folder that is gone."""
    run_to(tasks[0], 2, saved=2)
    run_to(tasks[1], 4)
    save(tasks, tmp_path / "back")
    before = contents(run_to(tasks[0], 1))
    shutil.rmtree(tasks[1].job.out)
    with lock_of(tasks[0].job.out):  # as its process does
        loaded = load_state(tmp_path / "back", tmp_path / "state")
    assert loaded.problems == [
        "tiny-fedmd/digits-lite-fedmd-seed0, which is being executed here; load it when that has ended"
    ]
    assert contents(tasks[0].job.out) == before
    assert loaded.taken == ["tiny-fccl/digits-lite-fccl-seed0"]
    assert load_state(tmp_path / "back", tmp_path / "state").taken == ["tiny-fedmd/digits-lite-fedmd-seed0"]


def test_files_of_two_archives_in_one_folder_are_not_mixed(tasks: list[Task], tmp_path: Path) -> None:
    """A part of the older one that comes back late changes nothing."""
    run_to(tasks[0], 2, saved=2, mark="old")
    save(tasks, tmp_path / "old", part=1024)
    expected = contents(run_to(tasks[0], 4, mark="new"))
    save(tasks, tmp_path / "new", part=700)
    for path in (tmp_path / "old").iterdir():
        assert not (tmp_path / "new" / path.name).exists()
        shutil.copy(path, tmp_path / "new")
    shutil.rmtree(tmp_path / "state")
    assert load_state(tmp_path / "new", tmp_path / "state").problems == []
    assert contents(tasks[0].job.out) == expected


@pytest.mark.parametrize("damage", ["cut", "changed"])
@pytest.mark.parametrize("stem", ["results", "checkpoints"])
def test_a_damaged_archive_is_named_and_the_others_are_read(
    stem: str, damage: str, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_to(tasks[0], 2, saved=2)
    save(tasks, tmp_path / "back")
    (path,) = (tmp_path / "back").glob(f"{stem}-*")
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + (b"" if damage == "cut" else bytes(8) + content[half + 8 :]))
    with pytest.raises(SystemExit) as error:
        main(["load", str(tmp_path / "back"), "--state", str(tmp_path / "there")])
    assert error.value.code == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "is damaged" in line)
    assert line.startswith(f"left out: {stem}-")
    there = tmp_path / "there" / tasks[0].job.out.relative_to(tmp_path / "state")
    assert (there / "events.jsonl").exists() == (stem == "checkpoints")
    assert not (there / "checkpoint").exists()


def test_results_of_a_run_come_before_all_checkpoints_and_what_does_not_fit_is_told(
    queue_file: Path, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_to(tasks[0], 2, saved=2)
    run_to(tasks[1], 4)
    assert [group.what for group in state_groups(tasks, tmp_path / "state") if group.files] == [
        "results of tiny-fccl/digits-lite-fccl-seed0",  # it is finished
        "results of tiny-fedmd/digits-lite-fedmd-seed0",
        "checkpoint of tiny-fedmd/digits-lite-fedmd-seed0",
    ]
    (whole,) = (
        path.stat().st_size for path in save_state(tasks[1:], tmp_path / "state", tmp_path / "x", 10**6, 1e9)[0]
    )
    command = ["save", "--queue", str(queue_file), "--state", str(tmp_path / "state"), "--out", str(tmp_path / "back")]
    with pytest.raises(SystemExit) as error:
        main([*command, "--limit", str((whole + 20) / 2**20)])
    assert error.value.code == 1
    printed = capsys.readouterr().out
    assert "left out, does not fit: results of tiny-fedmd/digits-lite-fedmd-seed0" in printed
    assert "2 did not fit into --limit" in printed
    load_state(tmp_path / "back", tmp_path / "there")
    assert [path.parent.name for path in (tmp_path / "there").rglob("result.json")] == ["digits-lite-fccl-seed0"]
    main(command)
    assert "left out" not in capsys.readouterr().out


def test_a_checkpoint_is_named_after_the_files_that_it_has(tasks: list[Task], tmp_path: Path) -> None:
    run_to(tasks[0], 2, saved=2)
    (group,) = (group for group in state_groups(tasks, tmp_path / "state") if group.stem == "checkpoints")
    assert [path.name for path in group.files] == ["server.safetensors", "latest.json"]


def test_nothing_is_not_saved_over_an_archive(tasks: list[Task], tmp_path: Path) -> None:
    run_to(tasks[0], 4)
    names = save(tasks, tmp_path / "back")
    with pytest.raises(UsageError, match="nothing fits into --limit"):
        save(tasks, tmp_path / "back", limit=10)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(UsageError, match="has no run of the queue"):
        save(tasks, tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == names


@pytest.mark.parametrize(
    "wrong",
    [
        "save --part -1", "save --part 1e-9", "save --part nan", "save --limit -1", "save --limit 0", "save --first -1",
        "save --first 0", "save back", "plan --first -1", "run --minutes nan", "run --minutes 0", "run --minutes inf",
        "run --margin -1", "run --margin nan", "run --minutes 1 --margin 60", "run --minutes 1 --margin 54",
        "run --jobs many", "run --device tpu", "plan --queue missing.toml", "load missing",
    ],
)  # fmt: skip
def test_an_option_that_is_not_possible_is_one_line_and_touches_nothing(
    wrong: str, queue_file: Path, tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_to(tasks[0], 2)
    save(tasks, tmp_path / "back")
    before = contents(tmp_path)
    command, *more = wrong.split()
    common = ["--queue", str(queue_file), "--state", str(tmp_path / "state"), "--out", str(tmp_path / "back")]
    with pytest.raises(SystemExit) as error:
        main([command, *common, *more])
    assert error.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert contents(tmp_path) == before


def test_failed_runs_end_with_an_exit_code(
    queue_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    sweep = tmp_path / "fedmd.toml"
    sweep.write_text(sweep.read_text().replace('"digits-lite"', '"digits"'))
    options = ["--first", "1", "--minutes", "5", "--data-root", str(tmp_path / "empty")]
    with pytest.raises(SystemExit) as error:
        main(["run", "--queue", str(queue_file), "--state", str(tmp_path / "state"), *options])
    assert error.value.code == 1
    assert "failed: " in capsys.readouterr().out
