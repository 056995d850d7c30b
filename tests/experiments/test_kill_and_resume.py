"""A run whose process is killed continues to the same numbers. Two processes with one seed agree."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import assert_same, events

COMMAND = ("--models", "simple_cnn@4,resnet10@4,mlp", "--rounds", "5", "--device", "cpu")
PLUGIN = Path(__file__).parent / "slow_training.py"
SETTINGS = ("image_size=16", "local_epochs=3", "local_batch=16", "public_size=40", "public_batch=16")


def command(scenario: Path, public: Path, out: Path, *more: str) -> list[str]:
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    head = [sys.executable, "-m", "fedchoir", "run", "fccl+", "--scenario", str(scenario), "--public", str(public)]
    return [*head, *COMMAND, *sets, "--out", str(out), *more]


def start(arguments: list[str], **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def until_training(process: subprocess.Popen[str]) -> None:
    """Until a client of ``slow_training.py`` trains."""
    assert process.stdout is not None
    while (line := process.stdout.readline()) and "a client trains" not in line:
        pass


def finish(arguments: list[str]) -> None:
    process = start(arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def kill_after(
    process: subprocess.Popen[str], folder: Path, rounds: int, delay: float, number: signal.Signals = signal.SIGKILL
) -> None:
    """Send a signal ``delay`` seconds after the given number of rounds is on disk."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        path = folder / "events.jsonl"
        if path.exists() and path.read_text().count("\n") >= rounds:
            time.sleep(delay)
            break
        time.sleep(0.005)
    process.send_signal(number)
    process.wait()


@pytest.mark.slow
def test_kill_minus_nine_and_resume(shapes: Path, public_shapes: Path, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    every = ("--checkpoint-every", "1")
    finish(command(shapes, public_shapes, straight))
    kill_after(start(command(shapes, public_shapes, killed, *every)), killed, 0, 0.0)  # before the first round
    for rounds, delay in ((1, 0.0), (2, 0.12), (4, 0.03)):
        kill_after(start(command(shapes, public_shapes, killed, *every, "--resume")), killed, rounds, delay)
    assert not (killed / "result.json").exists()
    finish(command(shapes, public_shapes, killed, "--resume"))  # and a resumed run may write them at other times
    assert_same(straight, killed)


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_a_run_that_is_asked_to_stop_in_every_round(shapes: Path, public_shapes: Path, tmp_path: Path) -> None:
    """Each stretch is shorter than the time between two checkpoints. A signal comes while clients train, also in the
    first round that a stretch computes: one round each finishes the run."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    rounds = ("--rounds", "4")
    finish(command(shapes, public_shapes, straight, *rounds))
    for done, (number, code) in enumerate([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)]):
        arguments = command(shapes, public_shapes, stopped, *rounds, *(["--resume"] if done else []))
        process = start(arguments, FEDCHOIR_PLUGINS=str(PLUGIN))
        until_training(process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        assert f"fedchoir: stopping after round {done + 1}; Ctrl-C again stops at once" in output
        again = shlex.join(["fedchoir", *arguments[3:], *(["--resume"] if not done else [])])
        last = f"stopped: {done + 1} of 4 rounds are saved in {stopped / 'checkpoint'}; to continue: {again}"
        assert output.splitlines()[-1] == f"fedchoir: {last}"
        assert len(events(stopped)) == done + 1
    finish(command(shapes, public_shapes, stopped, *rounds, "--resume"))
    assert_same(straight, stopped)


@pytest.mark.slow
def test_two_processes_with_one_seed_agree(shapes: Path, public_shapes: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        finish(command(shapes, public_shapes, tmp_path / name, "--rounds", "2"))
    assert_same(tmp_path / "one", tmp_path / "two")
