from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.fake_results import write_run
from typer.testing import CliRunner

from fedchoir.cli.app import app
from fedchoir.reporting.page import html_page, write_report
from fedchoir.reporting.run_data import find_runs, read_run
from fedchoir.utils.errors import UsageError

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    assert found
    return json.loads(found[1])


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_one_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "fccl+", 0, rounds=5)
    page = write_report([folder])
    data = data_of(page)
    assert page == folder / "report.html"
    assert [row["label"] for row in data["groups"][0]["rows"]] == ["fccl+"]
    run = data["runs"][0]
    assert run["own_tests"] == [0, 1, 2, 3]
    assert run["rounds"] == [1, 2, 3, 4, 5]
    result = json.loads((folder / "result.json").read_text())
    assert data["groups"][0]["rows"][0]["inter"]["mean"] == pytest.approx(result["inter_avg"])


def test_seeds_make_one_row_and_other_settings_another(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fccl+", seed, rounds=4)
    write_run(tmp_path / "b", "fccl+", 0, rounds=4, public_lr=0.1)
    group = data_of(write_report([tmp_path]))["groups"][0]
    assert sorted((row["seeds"], row["label"]) for row in group["rows"]) == [
        (1, "fccl+ public_lr=0.1"),
        (3, "fccl+ public_lr=0.001"),
    ]
    assert next(row for row in group["rows"] if row["seeds"] == 3)["inter"]["sd"] > 0
    assert "tabular" in group["text"]["latex"]


def test_rows_of_a_sweep_are_in_the_order_of_its_file(tmp_path: Path) -> None:
    for name in ("rhfl", "fedmd", "fccl"):
        write_run(tmp_path / name, name, 0, rounds=2)
    order = {"fedmd": "fedmd", "rhfl": "noisy", "fccl": "fccl"}
    (tmp_path / "sweep.json").write_text(json.dumps({"table": None, "runs": order}))
    (group,) = data_of(write_report([tmp_path]))["groups"]
    assert [row["label"] for row in group["rows"]] == list(order.values())


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=3)
    edit(folder / "result.json", method=HOSTILE, scenario=HOSTILE, notes=[HOSTILE], settings={HOSTILE: HOSTILE})
    text = write_report([folder]).read_text()
    assert text.count("<script") == 2  # the data and the code
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text  # the title, escaped
    assert data_of(folder / "report.html")["runs"][0]["notes"] == [HOSTILE]


def test_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    text = write_report([write_run(tmp_path / "x", "solo", 0, rounds=3)]).read_text()
    urls = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", text))
    assert urls == {"http://www.w3.org/2000/svg"}  # a namespace, not an address that is loaded
    assert "connect-src 'none'" in text


def test_not_a_number_is_a_gap(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=4)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    lines[2]["losses"]["usps"]["public_loss"] = float("nan")
    lines[2]["accuracy"][0][0] = float("inf")
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = data_of(write_report([folder]))["runs"][0]
    assert run["losses"]["public"][1][2] is None
    assert run["scores"][2][0][0] is None


def test_rounds_without_evaluation_are_gaps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=4)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    lines[0] |= {"accuracy": None, "intra_avg": None, "inter_avg": None}
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = data_of(write_report([folder]))["runs"][0]
    assert run["scores"][0] is None
    assert run["intra"][0] is None
    assert run["intra"][1] is not None


def missed_evaluation(folder: Path, client: int, rounds: slice) -> None:
    """Make a client miss the evaluation of some rounds, as an unreachable site does."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for line in lines[rounds]:
        line["accuracy"][client] = None
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("done", [3, 6])
def test_a_missed_evaluation_is_a_row_of_gaps(tmp_path: Path, done: int) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=6, done=done)
    missed_evaluation(folder, 1, slice(1, 2))
    run = data_of(write_report([folder]))["runs"][0]
    assert run["scores"][1][1] == [None] * 4
    assert None not in run["scores"][1][0]


def test_rows_belong_to_their_clients_when_one_was_never_evaluated(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=9, done=4)
    missed_evaluation(folder, 0, slice(None))
    run = data_of(write_report([folder]))["runs"][0]
    event = json.loads((folder / "events.jsonl").read_text().splitlines()[0])
    assert [client["name"] for client in run["clients"]] == ["usps", "svhn", "syn"]
    assert run["own_tests"] == [1, 2, 3]
    assert run["scores"][0][0] == pytest.approx(event["accuracy"][1], abs=0.01)


def test_label_skew_has_one_test_set_and_own_shares(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fedavg", 0, rounds=4, scenario="cifar10")
    edit(folder / "result.json", tests=["global"], inter=[], inter_avg=None, accuracy=[[50.0]] * 4)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"accuracy": [[50.0]] * 4, "inter_avg": None, "own": [70.0, None, 60.0, 50.0]}
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = data_of(write_report([folder]))
    assert data["groups"][0]["rows"][0]["inter"] is None
    assert data["runs"][0]["own_tests"] == [None] * 4
    assert data["runs"][0]["own"][0] == [70.0, None, 60.0, 50.0]


def test_running_and_half_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=9, done=4)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"round": 4, "accuracy": [[1.0, 2')
    run = read_run(folder)
    assert run is not None
    assert (len(run.events), run.planned, run.finished) == (4, 9, False)
    assert run.result.inter_avg is not None
    assert data_of(write_report([folder]))["runs"][0]["finished"] is False


@pytest.mark.parametrize("content", ["", "not json\n", "[1, 2]\n", '{"round": "x"}\n', "\x00\xff"])
def test_damaged_events_do_not_break(tmp_path: Path, content: str) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=3)
    (folder / "events.jsonl").write_text(content)
    assert read_run(folder) is not None  # the result is still there
    (folder / "result.json").write_text("{")
    assert read_run(folder) is None


def test_a_real_run(play, tmp_path: Path) -> None:
    play("fccl+", rounds=2)
    data = data_of(write_report([tmp_path]))
    run = data["runs"][0]
    assert [client["name"] for client in run["clients"]] == ["green", "red", "white"]
    assert set(run["losses"]) == {"public", "local"}
    assert run["own_tests"] == [0, 1, 2]


def test_command(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "solo", 0, rounds=3)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "deep" / "page.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "deep" / "page.html").exists()


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="no run in"):
        write_report([tmp_path])


def test_folders_are_found_once(tmp_path: Path) -> None:
    a = write_run(tmp_path / "s" / "a", "solo", 0, rounds=3)
    write_run(tmp_path / "s" / "b", "fccl", 0, rounds=3)
    assert find_runs([a, tmp_path]) == [a, tmp_path / "s" / "b"]


def test_script_is_named_in_the_policy() -> None:
    page = html_page("t", "", "", ("dom.js",), {"x": "<!--"}, connect="'none'")
    assert "<!--" not in page
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", page)
