from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fake_results import write_run

from fedchoir import Experiment, run
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.reporting.live.run_index import RunIndex


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "done", "fccl+", 0, rounds=5)
    write_run(folder / "deep" / "going", "feddf", 1, rounds=10, done=4)
    return folder


def test_links_out_of_the_folder_are_not_followed(root: Path) -> None:
    secret = root.parent / "secret"
    secret.mkdir()
    (secret / "events.jsonl").write_text('{"round": 0}\n')
    (root / "link").symlink_to(secret, target_is_directory=True)
    (root / "deep" / "events.jsonl").symlink_to(secret / "events.jsonl")
    assert set(RunIndex(root).folders()) == {"done", "deep/going"}


def test_a_run_without_changes_for_an_hour_is_stalled(root: Path) -> None:
    later = RunIndex(root, clock=lambda: time.time() + 3600)
    states = {run["id"]: (run["state"], run["eta"]) for run in later.runs()}
    assert states == {"done": ("finished", 0), "deep/going": ("stalled", None)}


def test_a_finished_run_without_events_shows_its_result(root: Path) -> None:
    (root / "done" / "events.jsonl").unlink()
    (done,) = [run for run in RunIndex(root).runs() if run["id"] == "done"]
    result = json.loads((root / "done" / "result.json").read_text())
    assert (done["round"], done["rounds"]) == (5, 5)
    assert done["inter"] == pytest.approx(result["inter_avg"], rel=1e-4)


def test_a_run_is_read_again_when_it_changes(root: Path) -> None:
    index = RunIndex(root)
    assert index.run("deep/going")["rounds"] == [1, 2, 3, 4]
    write_run(root / "deep" / "going", "feddf", 1, rounds=10, done=6)
    assert index.run("deep/going")["rounds"] == [1, 2, 3, 4, 5, 6]
    assert len(index.readable()) == 2
    assert index.run("elsewhere") is None


@pytest.mark.parametrize("content", ["", "{", "[1]\n", '{"round": 0, "accuracy": "x"}\n', "\x00\n"])
def test_damaged_files_do_not_stop_the_page(root: Path, content: str) -> None:
    bad = root / "bad"
    bad.mkdir()
    for name in ("events.jsonl", "task.json", "experiment.toml"):
        (bad / name).write_text(content)
    index = RunIndex(root)
    assert "bad" in {run["id"] for run in index.runs()}
    assert index.run("bad") == {}


def test_the_current_client_and_phase_are_shown(small: Callable[..., Experiment], tmp_path: Path) -> None:
    seen = []

    class Peek(LiveStatus):
        def client(self, name: str, phase: str) -> None:
            super().client(name, phase)
            (tmp_path / "run" / "live.json").write_text(json.dumps({"client": name, "phase": phase}))
            seen.append(RunIndex(tmp_path).runs()[0]["activity"])

    run(small("solo", rounds=1), observers=[Peek()])
    assert "green: local update" in seen
    assert not (tmp_path / "run" / "live.json").exists()
