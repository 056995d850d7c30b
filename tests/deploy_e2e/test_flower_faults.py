"""What may go wrong between real machines, with real processes: nothing is lost beyond the round in flight."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import MODELS, SETTINGS, SITES, TROUBLE, Server
from tests.helpers import numbers

import fedchoir
from fedchoir.core import checkpoint

pytestmark = pytest.mark.e2e
results = partial(numbers, only=("round", "accuracy", "losses", "bytes_up", "bytes_down", "left_out"))


def left_out(events: list[dict[str, Any]]) -> list[str]:
    return ["; ".join(out["why"] for out in event["left_out"] if out["client"] == "red") for event in events]


def local_run(federation: Server) -> fedchoir.Result:
    """The same experiment in one process: the rows of the sites' own test sets are its diagonal."""
    return fedchoir.run(
        fedchoir.Experiment(
            method="fccl+", scenario=str(federation.folder / "data"), public=str(federation.folder / "public.npz"),
            models=tuple(MODELS[name] for name in sorted(SITES)), rounds=3, device="cpu",
            out=federation.folder / "local", settings={**SETTINGS, "sync": "epoch"},
        )
    )  # fmt: skip


def test_same_numbers_as_one_process_and_a_killed_server_goes_on_to_them(federation: Server) -> None:
    federation.node("green"), federation.node("red")
    straight = federation.write("straight", settings={"sync": "epoch"})
    server = federation.serve(straight)
    federation.finished(server)
    local = local_run(federation)
    result = json.loads((federation.folder / "straight" / "result.json").read_text())
    assert [row[0] for row in result["accuracy"]] == local.intra
    assert (result["bytes_up"], result["bytes_down"]) == (local.bytes_up, local.bytes_down)
    assert result["messages"] == 3 * 2 + 2  # one per site and round, and the end of the last one
    losses = [event["losses"] for event in federation.events("straight")]
    assert losses == [event["losses"] for event in federation.events("local")]

    # server and SuperLink die together; the nodes live on and meet a new SuperLink
    broken = federation.write("broken", settings={"sync": "epoch"})
    server = federation.serve(broken)
    federation.until(lambda: checkpoint.latest(federation.folder / "broken" / "checkpoint"), server)
    federation.end(server, signal.SIGKILL)
    assert len(federation.events("broken")) < 3

    # then its disk is full at the next checkpoint; the one before is intact
    server = federation.serve(broken, "--resume", FEDCHOIR_PLUGINS=str(TROUBLE), FEDCHOIR_TEST_FULL="1")
    federation.finished(server, code=4)
    assert re.search(
        "stopped: the checkpoint of round . could not be written.*No space left", federation.log("serve.log")
    )
    assert len([*(federation.folder / "broken" / "checkpoint").glob("round-*")]) == 1
    server = federation.serve(broken, "--resume")
    federation.finished(server)
    assert results(federation.folder / "broken") == results(federation.folder / "straight")


def test_each_trouble_of_a_client_costs_it_one_round_and_is_named(federation: Server) -> None:
    plugin = {"FEDCHOIR_PLUGINS": str(TROUBLE)}
    federation.node("green", **plugin), federation.node("red", **plugin)
    path = federation.write(
        "run", method="troubled", rounds=8, deadline=30, max_message_mb=4, settings={"sync": "epoch"}
    )
    server = federation.serve(path, **plugin)
    federation.finished(server)
    why = left_out(federation.events("run"))
    assert "RuntimeError: the scanner is on fire" in why[0]
    assert "30 s" in why[1]
    assert "logits is not finite" in why[2]
    assert "logits has shape" in why[3]
    assert "tensor patients was not declared" in why[4]
    assert "4194304 are allowed" in why[5]
    assert re.search("red could not write its state to .*No space left on device; it stays as it was", why[6])
    assert why[7] == ""
    assert not [*federation.folder.glob("work-red/state/*/*.part")]  # nothing half-written
    assert all(event["accuracy"][0] is not None for event in federation.events("run"))
    for reason in why[:7]:
        assert f"red was left out of speak: {reason}" in federation.log("serve.log")


def test_a_late_node_joins_and_a_killed_supernode_comes_back(federation: Server) -> None:
    gates = federation.folder / "gates"
    gates.mkdir()
    for who in ("green-0", "red-2", "green-3", "green-4"):
        (gates / f"hold-{who}").touch()
    plugin = {"FEDCHOIR_PLUGINS": str(TROUBLE), "FEDCHOIR_TEST_GATES": str(gates)}
    federation.node("green", **plugin)
    changes = {"method": "gated", "rounds": 6, "deadline": 100, "wait": 20, "settings": {"sync": "epoch"}}
    path = federation.write("run", **changes)
    server = federation.serve(path, **plugin)

    # round 0 is played without red, which comes before it ends
    federation.until(lambda: (gates / "began-green-0").exists(), server)
    red = federation.node("red", **plugin)
    federation.until(lambda: "red: connected" in federation.log("node-red.log"), server)
    (gates / "hold-green-0").unlink()

    # in round 2 red is at work when its SuperNode is killed
    federation.until(lambda: (gates / "began-red-2").exists(), server)
    (supernode,) = (child for child in psutil.Process(red.pid).children() if "supernode" in " ".join(child.cmdline()))
    supernode.kill()
    (gates / "hold-red-2").unlink()

    # the SuperLink believes for a minute that red is still there, then lets it in again
    federation.until(lambda: federation.log("node-red.log").count("red: connected") == 2, server)
    (gates / "hold-green-3").unlink()

    # in round 4 the server's operator locks red out; nothing is restarted
    federation.until(lambda: (gates / "began-green-4").exists(), server)
    federation.until(lambda: (gates / "began-red-4").exists(), server)
    sites = [{"name": n, "key": f"keys/{n}.pub", "model": MODELS[n], "revoked": n == "red"} for n in SITES]
    federation.write("run", **changes, sites=sites)
    (gates / "hold-green-4").unlink()
    federation.finished(server)
    why = left_out(federation.events("run"))
    assert why[0] == "not connected"
    assert why[1] == ""
    assert why[2] != ""
    assert why[4] == ""
    assert "not connected" in why[5]
    assert "red is revoked: its key is not accepted any more" in federation.log("serve.log")
    assert "the SuperNode ended" in federation.log("node-red.log")
    result = json.loads((federation.folder / "run" / "result.json").read_text())
    assert [client["train"] for client in result["clients"]] == [48, 48]


def test_check_says_what_does_not_fit(federation: Server) -> None:
    federation.node("green")
    federation.start(
        "node-red.log", "node", "--server", f"127.0.0.1:{federation.port}", "--data", "data/red.npz",
        "--model", MODELS["red"], "--key", "keys/red", "--ca", "keys/ca.crt", "--public", "photos", "--device", "cpu",
    )  # fmt: skip
    path = federation.write("run", wait=15, settings={"sync": "epoch"})
    check = federation.start("check.log", "federation", "check", path.name)
    federation.finished(check, code=2)
    assert re.search("fedchoir: (red|green): its public set is not that of (green|red)", federation.log("check.log"))
    assert not (federation.folder / "run" / "events.jsonl").exists()
