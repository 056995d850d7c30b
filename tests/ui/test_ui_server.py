"""The live server: what it says, to whom, and what it never does."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.synthetic_runs import make_run
from typer.testing import CliRunner

from fedchoir.cli.app import app
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.reporting.live.run_index import Watch
from fedchoir.reporting.live.server import LiveServer
from fedchoir.utils.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_run(folder / "done", "fccl+", 0, rounds=5)
    make_run(folder / "deep" / "going", "feddf", 1, rounds=10, done=4)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "events.jsonl").write_text('{"round": 0}\n')
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[LiveServer]:
    with LiveServer(root, port=0) as live:
        thread = threading.Thread(target=live.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield live
        live.shutdown()


def get(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_lists_runs(server: LiveServer) -> None:
    status, headers, body = get(server, "/api/runs")
    runs = {run["id"]: run for run in json.loads(body)["runs"]}
    assert status == 200
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert set(runs) == {"done", "deep/going"}
    assert runs["done"]["state"] == "finished"
    going = runs["deep/going"]
    assert (going["state"], going["round"], going["rounds"]) == ("running", 4, 10)
    assert 0 < going["eta"] <= 6 * 5


def test_follows_a_run(server: LiveServer, root: Path) -> None:
    _, headers, _ = get(server, "/api/runs")
    make_run(root / "deep" / "going", "feddf", 1, rounds=10, done=6)
    with (root / "deep" / "going" / "events.jsonl").open("a") as file:
        file.write('{"round": 6, "accu')  # being written at this moment
    status, _, body = get(server, "/api/run?id=" + quote("deep/going", safe=""))
    assert status == 200
    assert json.loads(body)["rounds"] == [1, 2, 3, 4, 5, 6]
    status, _, _ = get(server, "/api/runs", **{"If-None-Match": headers["ETag"]})
    assert status == 200  # it has changed


def test_unchanged_run_is_not_sent_again(server: LiveServer) -> None:
    _, headers, _ = get(server, "/api/run?id=done")
    status, _, body = get(server, "/api/run?id=done", **{"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")


@pytest.mark.parametrize(
    "name", ["../secret", "..%2fsecret", "/etc/passwd", "deep/../../secret", "done/../done", "", "%00"]
)
def test_no_way_out_of_the_folder(server: LiveServer, name: str) -> None:
    assert get(server, f"/api/run?id={name}")[0] == 404
    assert get(server, f"/report?id={name}")[0] == 404 if name else True
    assert get(server, f"/{name}")[0] == (200 if name == "" else 404)


def test_links_out_of_the_folder_are_not_followed(server: LiveServer, root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret", target_is_directory=True)
    (root / "deep" / "events.jsonl").symlink_to(root.parent / "secret" / "events.jsonl")
    assert set(Watch(root).folders()) == {"done", "deep/going"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "192.168.0.7"])
def test_other_host_names_are_turned_away(server: LiveServer, host: str) -> None:
    assert get(server, "/api/runs", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8090"])
def test_own_host_names_are_welcome(server: LiveServer, host: str) -> None:
    assert get(server, "/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_read_only(server: LiveServer, method: str) -> None:
    assert get(server, "/api/run?id=done", method)[0] == 405


def test_reports(server: LiveServer) -> None:
    assert b"2 methods on digits" in get(server, "/report")[2]
    assert b"fccl+ on digits" in get(server, "/report?id=done")[2]


def test_other_machines_only_when_told(root: Path) -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        LiveServer(root, "0.0.0.0", 0)
    with LiveServer(root, "0.0.0.0", 0, allow_remote=True) as live:
        assert live.welcomes("192.168.0.7:8090")
        assert not live.welcomes("evil.example")
    done = CliRunner().invoke(app, ["ui", str(root), "--host", "0.0.0.0"])
    assert isinstance(done.exception, UsageError)


def test_bad_folder_and_port(root: Path, server: LiveServer) -> None:
    with pytest.raises(UsageError, match="no folder"):
        LiveServer(root / "nowhere")
    with pytest.raises(UsageError, match="another --port"):
        LiveServer(root, port=server.server_address[1])


def test_a_run_that_says_nothing_for_long_is_quiet(root: Path) -> None:
    later = Watch(root, clock=lambda: time.time() + 3600)
    states = {run["id"]: (run["state"], run["eta"]) for run in later.runs()}
    assert states == {"done": ("finished", 0), "deep/going": ("quiet", None)}


@pytest.mark.parametrize("content", ["", "{", "[1]\n", '{"round": 0, "accuracy": "x"}\n', "\x00\n"])
def test_damaged_files_do_not_stop_the_page(root: Path, content: str) -> None:
    bad = root / "bad"
    bad.mkdir()
    for name in ("events.jsonl", "task.json", "experiment.toml"):
        (bad / name).write_text(content)
    watch = Watch(root)
    assert "bad" in {run["id"] for run in watch.runs()}
    assert watch.run("bad") == {}


def test_who_is_doing_what(small, tmp_path: Path) -> None:
    from fedchoir import run

    seen = []

    class Peek(LiveStatus):
        def client(self, name: str, phase: str) -> None:
            self._written = 0.0
            super().client(name, phase)
            seen.append(Watch(tmp_path).runs()[0]["doing"])

    run(small("solo", rounds=1), observers=[Peek()])
    assert "green practises at home" in seen
    assert not (tmp_path / "run" / "live.json").exists()
