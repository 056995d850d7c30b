"""Faults of real nodes: faulty clients, late nodes, a killed SuperNode. At most the current round is lost."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest
from tests.deploy_e2e.conftest import FAULTY_PLUGIN, MODELS, SITES, Federation

pytestmark = pytest.mark.e2e


def reasons(events: list[dict[str, Any]]) -> list[str]:
    """Why red was left out, by round; empty where it was not."""
    return ["; ".join(out["why"] for out in event["left_out"] if out["client"] == "red") for event in events]


def test_each_fault_of_a_client_costs_it_one_round_and_is_reported(federation: Federation) -> None:
    plugin = {"FEDCHOIR_PLUGINS": str(FAULTY_PLUGIN)}
    path = federation.write("run", method="faulty", rounds=8, deadline=20, max_message_mb=4, settings={"sync": "epoch"})
    federation.join(path, **plugin)
    server = federation.serve(path, **plugin)
    federation.finished(server)
    why = reasons(federation.events("run"))
    assert why[0] == "RuntimeError at this site; its operator finds the reason in its log"
    assert "20 s" in why[1]
    assert "logits is not finite" in why[2]
    assert "logits has shape" in why[3]
    assert "tensor patients was not declared" in why[4]
    assert "4194304 are allowed" in why[5]
    assert why[6] == "could not write its state: No space left on device; its state before this message is intact"
    assert why[7] == ""
    assert not [*federation.folder.glob("work-red/state/*/*.part")]  # nothing half-written
    assert all(event["accuracy"][0] is not None for event in federation.events("run"))
    for reason in why[:7]:
        assert f"red was left out of share: {reason}" in federation.log("serve.log")
    assert "red: failed: RuntimeError: the scanner is on fire" in federation.log("node-red.log")
    assert "on fire" not in federation.log("serve.log")  # an error may name files or data: the server gets its kind


def test_a_late_node_joins_and_a_killed_supernode_reconnects(federation: Federation) -> None:
    pauses = federation.folder / "pauses"
    pauses.mkdir()
    for who in ("green-0", "red-2", "green-3", "green-4"):
        (pauses / f"hold-{who}").touch()
    plugin = {"FEDCHOIR_PLUGINS": str(FAULTY_PLUGIN), "FEDCHOIR_TEST_PAUSES": str(pauses)}
    changes = {"method": "paused", "rounds": 6, "deadline": 100, "wait": 20, "settings": {"sync": "epoch"}}
    path = federation.write("run", **changes)
    federation.join(path, names=["green"], **plugin)
    server = federation.serve(path, **plugin)

    # red connects during round 0, which runs without it
    federation.until(lambda: (pauses / "began-green-0").exists(), server)
    (red,) = federation.join(path, names=["red"], **plugin)
    federation.until(lambda: "red: connected" in federation.log("node-red.log"), server)
    (pauses / "hold-green-0").unlink()

    # in round 2 the SuperNode of red is killed while red works
    federation.until(lambda: (pauses / "began-red-2").exists(), server)
    (supernode,) = (child for child in psutil.Process(red.pid).children() if "supernode" in " ".join(child.cmdline()))
    supernode.kill()
    (pauses / "hold-red-2").unlink()

    # the SuperLink takes red for connected for a minute, then admits it again
    federation.until(lambda: federation.log("node-red.log").count("red: connected") == 2, server)
    (pauses / "hold-green-3").unlink()

    # in round 4 red is revoked in the file of the running server
    federation.until(lambda: (pauses / "began-green-4").exists(), server)
    federation.until(lambda: (pauses / "began-red-4").exists(), server)
    sites = [{"name": n, "key": f"keys/{n}.pub", "model": MODELS[n], "revoked": n == "red"} for n in SITES]
    federation.write("run", **changes, sites=sites)
    (pauses / "hold-green-4").unlink()
    federation.finished(server)
    why = reasons(federation.events("run"))
    assert why[0] == "not connected"
    assert why[1] == ""
    assert why[2] != ""
    assert why[4] == ""
    assert "not connected" in why[5]
    assert "red is revoked: its key is no longer accepted" in federation.log("serve.log")
    assert "the connection's process was killed by signal 9: connecting again" in federation.log("node-red.log")
    result = json.loads((federation.folder / "run" / "result.json").read_text())
    assert [client["train"] for client in result["clients"]] == [48, 48]
