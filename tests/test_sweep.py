"""Sweeps: what a file comes to, and a queue that is really killed, really resumed, and never plays a run twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedchoir import run
from fedchoir.cli import app as cli
from fedchoir.experiments import config as experiments
from fedchoir.experiments.scheduler import Outcome, is_finished, is_locked, lock_of, run_jobs
from fedchoir.experiments.sweep import Overrides, SweepFile, jobs_of, parse_seeds, read_sweep
from fedchoir.utils.errors import UsageError
from fedchoir.utils.threads import threads_for
from tests.helpers import numbers

SMALL = {"image_size": 16, "local_epochs": 1, "local_batch": 16, "public_size": 16, "public_batch": 8}


# -- what a file comes to ----------------------------------------------------------------------------------------------


def test_grid_times_variants_times_seeds() -> None:
    file = SweepFile(
        seeds=(0, 3),
        base={"scenario": "digits", "method": "fccl+", "settings": {"local_epochs": 2}},
        grid={"omega": [1, 2], "public": ["cifar100", "photos"]},
        variant=[{}, {"label": "no FNTD", "settings": {"regulariser": "none"}}],
    )
    made = jobs_of(file, Path("out"))
    assert len(made) == 2 * 2 * 2 * 2
    job = next(j for j in made if j.name == "digits-photos-no-FNTD-omega=2-seed3")
    assert job.label == "no FNTD omega=2"
    assert job.out == Path("out") / job.name
    assert job.experiment.settings == {"local_epochs": 2, "omega": 2, "regulariser": "none"}
    assert (job.experiment.public, job.experiment.seed) == ("photos", 3)


def test_a_scenario_of_your_own_keeps_the_kind_of_models() -> None:
    file = SweepFile(
        base={"public": "cifar100", "settings": {"private": [0.01], "local_epochs": 3}},
        grid={"scenario": ["digits", "office31"], "method": ["fedmd"], "models": ["resnet12", "resnet10,resnet12"]},
    )
    alike, different = jobs_of(file, Path("out"), Overrides(scenario="digits-lite"))
    assert (alike.experiment.models, different.experiment.models) == (("resnet12@8",), None)
    assert {alike.experiment.scenario, different.experiment.scenario} == {"digits-lite"}
    assert alike.experiment.public is None
    assert alike.experiment.settings == {"local_epochs": 3}


def test_overrides_seeds_and_only() -> None:
    file = SweepFile(base={"scenario": "digits-lite"}, grid={"method": ["solo", "fedmd", "fccl+"]})
    overrides = Overrides(seeds=(5,), values={"rounds": 2}, settings={"local_epochs": 1})
    made = jobs_of(file, Path("out"), overrides, only=["fccl+", "*-solo"])
    assert [job.name for job in made] == ["digits-lite-solo-seed5", "digits-lite-fccl+-seed5"]
    assert [job.label for job in jobs_of(file, Path("out"), only=["f*d*"])] == ["fedmd"]
    assert all(job.experiment.rounds == 2 and job.experiment.settings == {"local_epochs": 1} for job in made)
    assert overrides.tag == "-rounds=2-local_epochs=1"
    assert len(Overrides(settings={f"option_{i}": i for i in range(20)}).tag) < 80
    with pytest.raises(UsageError, match="fits no run; labels: solo, fedmd"):
        jobs_of(file, Path("out"), only=["fedmagic"])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"base": {"method": "fedmd"}, "grid": {"omga": [1]}}, "digits-lite-fedmd-omga=1: there is no option 'omga'"),
        ({"base": {"method": "fccl+", "settings": {"omega": -1}}}, "omega = -1"),
        ({"base": {"method": "nonesuch"}}, "no method is called 'nonesuch'"),
        ({"grid": {"method": []}}, "method has no values"),
        ({"base": {"method": "solo", "round": 3}}, "there is no option 'round'"),
        (
            {"base": {"method": "fccl+"}, "variant": [{"settings": {"omega": 1}}, {"settings": {"omega": 2}}]},
            "two different runs are called 'digits-lite-fccl\\+-seed0'",
        ),
    ],
)
def test_nothing_starts_if_one_run_is_not_possible(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        jobs_of(SweepFile(**values), Path("out"))


def test_files_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('title = "x"\n[grids]\nmethod = ["solo"]\n')
    with pytest.raises(UsageError, match=r"there is no option 'grids' of a sweep; did you mean grid\?"):
        read_sweep(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('like = "a"\nseeds = [1]\n')
    with pytest.raises(UsageError, match="seeds is not possible beside like"):
        read_sweep(tmp_path / "b.toml")
    for text in ("0", "x", "", "1,b"):
        with pytest.raises(UsageError, match="--seeds"):
            parse_seeds(text)


# -- the queue ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep_of(shapes: Path, public_shapes: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a sweep file of quick runs."""

    def write(name: str = "quick", rounds: int = 2, **grid: list[Any]) -> Path:
        base = {"scenario": str(shapes), "public": str(public_shapes), "models": "simple_cnn@4", "rounds": rounds}
        values = {"base": {**base, "device": "cpu", "settings": SMALL}, "grid": grid}
        path = tmp_path / f"{name}.toml"
        path.write_text(experiments.tomli_w.dumps(values))
        return path

    return write


def play(path: Path, out: Path, **more: Any) -> tuple[list[Outcome], list[dict[str, Any]]]:
    received: list[dict[str, Any]] = []
    outcomes = run_jobs(jobs_of(read_sweep(path), out), watch=lambda job, said: received.append(said), **more)
    return outcomes, received


def test_two_at_once_then_nothing_is_left_to_do(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    path = sweep_of(method=["solo", "fedmd"])
    outcomes, received = play(path, tmp_path / "out", processes=2)
    assert [o.state for o in outcomes] == ["finished", "finished"]
    assert sum(said["event"] == "round" for said in received) == 4
    written = {
        job.out: (job.out / "result.json").stat().st_mtime_ns for job in jobs_of(read_sweep(path), tmp_path / "out")
    }
    again, received = play(path, tmp_path / "out", processes=2)
    assert [o.state for o in again] == ["there", "there"]
    assert {out: (out / "result.json").stat().st_mtime_ns for out in written} == written
    path.write_text(path.read_text().replace("local_epochs = 1", "local_epochs = 2"))
    changed, _ = play(path, tmp_path / "out")
    assert [o.state for o in changed] == ["failed", "failed"]
    assert "holds another run: settings was" in changed[0].why


CRASH = """
import os
from fedchoir.methods.solo import Solo
class Crash(Solo):
    name = "crash"
    def practise(self, client):
        os.kill(os.getpid(), 9)
class Bug(Solo):
    name = "bug"
    def practise(self, client):
        print("about to fail")
        raise ValueError("a bug")
"""


def test_failed_runs_are_told_and_do_not_stop_the_others(
    sweep_of: Callable[..., Path], tmp_path: Path, shapes: Path, plugins: Callable[[str], None]
) -> None:
    """Data that cannot be read, a bug, and a process that dies."""
    plugins(CRASH)
    (tmp_path / "broken").mkdir()
    for name in "ab":
        (tmp_path / "broken" / f"{name}.npz").write_bytes(b"not a zip")
    scenarios = [str(tmp_path / "broken"), str(shapes)]
    outcomes, _ = play(sweep_of(scenario=scenarios, method=["crash", "bug", "solo"], rounds=1), tmp_path / "out")
    assert [o.state for o in outcomes] == ["failed"] * 5 + ["finished"]
    assert "a.npz: not a readable .npz file" in outcomes[0].why
    assert outcomes[3].why == "its process was killed by signal 9"
    assert outcomes[4].why == "ValueError: a bug"
    assert outcomes[4].log is not None
    assert "about to fail" in outcomes[4].log.read_text()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Methods of a user's own for this test and the processes it starts."""
    from fedchoir import methods

    def use(source: str) -> None:
        path = tmp_path / "plugin.py"
        path.write_text(source)
        monkeypatch.setenv("FEDCHOIR_PLUGINS", str(path))
        methods.registry.cache_clear()

    yield use
    monkeypatch.undo()
    methods.registry.cache_clear()


def command(path: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "fedchoir", "sweep", str(path), "--out", str(out)]


def test_a_sweep_that_is_killed_goes_on_to_the_same_numbers(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    """SIGKILL for the sweep: its worker leaves too, gives its lock back, and the run goes on from its checkpoint."""
    path, out = sweep_of(method=["fedmd"], rounds=12), tmp_path / "killed"
    (job,) = jobs_of(read_sweep(path), out)
    sweep = subprocess.Popen(command(path, out), stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    events = job.out / "events.jsonl"
    _until(lambda: events.exists() and events.read_text().count("\n") >= 2)
    workers = psutil.Process(sweep.pid).children(recursive=True)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    _until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))
    assert workers
    assert not is_finished(job)
    assert not is_locked(job)
    before = len(numbers(job.out))
    assert before < 12
    outcomes, received = play(path, out)
    assert [o.state for o in outcomes] == ["finished"]
    began = next(said for said in received if said["event"] == "began")
    assert began["done"] in (before - 1, before)  # not from the start
    straight = job.experiment.model_copy(update={"out": tmp_path / "straight"})
    run(straight)
    assert numbers(job.out) == numbers(tmp_path / "straight")


def test_two_sweeps_on_one_folder_never_play_a_run_twice(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    path, out = sweep_of(method=["solo"], rounds=1), tmp_path / "out"
    (job,) = jobs_of(read_sweep(path), out)
    told: list[Outcome] = []
    ours = threading.Thread(target=lambda: told.extend(play(path, out)[0]))
    with lock_of(job):  # what a sweep holds that plays the run
        ours.start()
        time.sleep(1.5)  # ours looks again and again
        assert ours.is_alive()
        assert not job.out.exists()
    ours.join(timeout=120)
    assert [o.state for o in told] == ["finished"]
    assert is_finished(job)


def _until(happened: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_for(n) for n in (1, 3, 16)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_for(2) == 1


# -- the commands ------------------------------------------------------------------------------------------------------


def fedchoir(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    before, code = sys.argv, 0
    sys.argv = ["fedchoir", *arguments]
    try:
        cli.main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_dry_run_lists_and_writes_nothing(
    sweep_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_of(method=["solo", "fedmd"])
    code, out, _ = fedchoir(capsys, "sweep", str(path), "--out", str(tmp_path / "x"), "--seeds", "2", "--dry-run")
    assert code == 0
    assert len([line for line in out.splitlines() if "-seed" in line]) == 4
    assert not (tmp_path / "x").exists()
    code, out, _ = fedchoir(capsys, "reproduce", "fccl+/table8", "--scenario", "digits-lite", "--dry-run")
    assert code == 0
    assert "digits-lite-fccl+-seed0" in out
    assert "7 runs" in out
    code, _, err = fedchoir(capsys, "reproduce", "fccl+/table80")
    assert (code, err.count("\n")) == (2, 1)
    assert "nearest: fccl+/table8" in err
    assert "fedfoa/table3" in fedchoir(capsys, "reproduce", "--list")[1]


def test_sweep_files_of_two_sections_do_not_share_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Both have a run that is called digits-solo-seed0, and they are not the same run."""
    results = Path(__file__).parents[1] / "results"
    for section in ("digits", "homogeneous"):
        code, out, _ = fedchoir(capsys, "sweep", str(results / section / "sweep.toml"), "--only", "solo", "--dry-run")
        assert code == 0
        assert f"runs/{section}/" in out.replace("\n", "")
        assert "digits-solo-seed0" in out


def test_a_table_on_other_data_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shapes: Path, public_shapes: Path
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
    ]
    arguments += [part for k, v in SMALL.items() for part in ("--set", f"{k}={v}")]
    code, out, err = fedchoir(capsys, *arguments, "--format", "csv")
    assert code == 0
    assert out.startswith("setting,label,method")
    assert "26.38" in out
    assert "1 finished" in err
    code, out, _ = fedchoir(capsys, "compare", str(tmp_path / "t8"))
    assert "for orientation only" in " ".join(out.split())
