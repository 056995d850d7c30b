from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fake_results import write_run
from typer.testing import CliRunner

from fedchoir.cli.app import app
from fedchoir.reporting.live.server import LiveServer
from fedchoir.utils.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "done", "fccl+", 0, rounds=5)
    write_run(folder / "deep" / "going", "feddf", 1, rounds=10, done=4)
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
    response = connection.getresponse()
    return response.status, dict(response.getheaders()), response.read()


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
    write_run(root / "deep" / "going", "feddf", 1, rounds=10, done=6)
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


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "192.168.0.7"])
def test_other_host_names_are_refused(server: LiveServer, host: str) -> None:
    assert get(server, "/api/runs", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8090"])
def test_own_host_names_are_accepted(server: LiveServer, host: str) -> None:
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
        assert live.accepts("192.168.0.7:8090")
        assert not live.accepts("evil.example")
    done = CliRunner().invoke(app, ["ui", str(root), "--host", "0.0.0.0"])
    assert isinstance(done.exception, UsageError)


def test_bad_folder_and_port(root: Path, server: LiveServer) -> None:
    with pytest.raises(UsageError, match="no folder"):
        LiveServer(root / "nowhere")
    with pytest.raises(UsageError, match="another --port"):
        LiveServer(root, port=server.server_address[1])


def test_a_damaged_run_does_not_hide_the_others(server: LiveServer, root: Path) -> None:
    bad = root / "bad"
    bad.mkdir()
    events = [{"round": 0, "seconds": 3, "left_out": {"a": 1}}, {"round": "x"}, {"round": 1, "bytes_up": "many"}]
    (bad / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (bad / "task.json").write_text('{"rounds": "ten", "clients": 3, "method": []}')
    (bad / "result.json").write_text('{"rounds": NaN, "seed": Infinity}')
    status, _, body = get(server, "/api/runs")
    assert status == 200
    assert {run["id"] for run in json.loads(body)["runs"]} == {"done", "deep/going", "bad"}
    assert get(server, "/api/run?id=bad")[0] == 200
    assert get(server, "/report")[0] == 200
