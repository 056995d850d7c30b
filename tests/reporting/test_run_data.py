from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fake_results import write_run

from fedchoir.reporting.page import write_report
from fedchoir.reporting.run_data import find_runs, matrices_each, read_run, read_runs, run_data
from fedchoir.utils.errors import UsageError

RESULTS = Path(__file__).parents[2] / "results"


def test_folders_are_found_once_in_order(tmp_path: Path) -> None:
    a = write_run(tmp_path / "s" / "a", "solo", 0, rounds=3)
    b = write_run(tmp_path / "s" / "b", "fccl", 0, rounds=3)
    assert find_runs([a, tmp_path]) == [a, b]
    assert find_runs([b / "result.json"]) == [b]
    with pytest.raises(UsageError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])


def test_an_unfinished_run_has_the_result_of_its_rounds_so_far(tmp_path: Path) -> None:
    running = read_run(write_run(tmp_path / "a", "fccl", 0, rounds=9, done=4))
    finished = read_run(write_run(tmp_path / "b", "fccl", 0, rounds=4))
    assert running is not None
    assert finished is not None
    assert (running.finished, running.planned, finished.finished, finished.planned) == (False, 9, True, 4)
    assert running.result.intra == pytest.approx(finished.result.intra)
    assert running.result.inter_avg == pytest.approx(finished.result.inter_avg)
    assert running.result.notes == ["this run is not finished"]
    assert read_run(write_run(tmp_path / "c", "fccl", 0, rounds=4, done=0)) is None


def test_values_of_the_page(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "fccl", 0, rounds=6))
    assert run is not None
    data = json.loads(json.dumps(run_data(run, "name", matrices=3), allow_nan=False))
    assert data["rounds"] == [1, 2, 3, 4, 5, 6]
    assert [k for k, matrix in enumerate(data["scores"]) if matrix] == [0, 2, 5]
    assert data["own_tests"] == [0, 1, 2, 3]
    assert set(data["losses"]) == {"public", "local"}
    total = [sum(data["seconds"][phase][0] for phase in ("public", "local", "evaluate", "other"))]
    assert total == pytest.approx([run.events[0]["seconds"]["total"]], rel=1e-3)


def test_stored_runs_are_read_like_folders(tmp_path: Path) -> None:
    runs = read_runs([RESULTS / "fedct-gap"])
    assert len(runs) == 9
    run = next(run for run in runs if run.folder.name == "cifar10-fedavg-crop-+-flip-seed0")
    assert run.finished
    assert run.own_tests == (None,) * 10
    assert len(run.events) == run.planned == 20
    assert 'method = "fedavg"' in run.toml
    assert matrices_each(runs) > 1000
    page = write_report([RESULTS / "fedct-gap", write_run(tmp_path / "mine", "solo", 0, rounds=3)], tmp_path / "r.html")
    data = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert "centralized, crop + flip" in {row["label"] for group in data["groups"] for row in group["rows"]}
    assert len(data["runs"]) == 10
