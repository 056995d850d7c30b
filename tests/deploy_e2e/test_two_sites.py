"""Two real nodes, each with its own copy of the federation's file. They carry out what they agreed to, also after the
server was killed, and refuse the rest. All tests share the nodes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.deploy_e2e.conftest import FAULTY_PLUGIN, MODELS, SETTINGS, SITES, Federation, Process, alone

import fedchoir
from fedchoir.core import checkpoint

pytestmark = pytest.mark.e2e
COMPRESSED: dict[str, Any] = {"compress": "topk:0.1+int8+zstd", "settings": {"sync": "epoch", "public_batch": 40}}
"""Similarities of 40 samples are large enough for every stage."""
FIRST_ROUND_SECONDS = 60.0  # from the first command at a site to the end of round 1


class Running(NamedTuple):
    """A federation after a run of ``path``; its nodes wait for the next one."""

    federation: Federation
    path: Path
    nodes: dict[str, Process]
    first_round: float  # seconds


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Federation.ending(tmp_path_factory.mktemp("two_sites")) as federation:
        with alone(tmp_path_factory):
            path = federation.write("straight", settings={"sync": "epoch"})
            start = time.monotonic()
            nodes = dict(zip(SITES, federation.join_with_policy(path), strict=True))
            server = federation.serve(path)
            federation.until(lambda: federation.events("straight"), server)
            first_round = time.monotonic() - start
        federation.finished(server)
        yield Running(federation, path, nodes, first_round)


def local_run(federation: Federation, name: str, compress: str | None = None, **settings: Any) -> fedchoir.Result:
    """The same experiment in one process. Sites test on their own data only: its intra-domain accuracies."""
    return fedchoir.run(
        fedchoir.Experiment(
            method="fccl+", scenario=str(federation.folder / "data"), public=str(federation.folder / "public.npz"),
            models=tuple(MODELS[name] for name in sorted(SITES)), rounds=3, device="cpu", compress=compress,
            out=federation.folder / name, settings={**SETTINGS, "sync": "epoch", **settings},
        )
    )  # fmt: skip


def assert_same_as(local: str, federation: Federation, name: str) -> None:
    """Assert that every round has the numbers and bytes of a run in one process."""
    for ours, theirs in zip(federation.events(name), federation.events(local), strict=True):
        assert [row[0] for row in ours["accuracy"]] == [row[k] for k, row in enumerate(theirs["accuracy"])]
        for key in ("round", "losses", "bytes_up", "bytes_down", "left_out"):
            assert ours[key] == theirs[key], key


def test_same_numbers_as_one_process(running: Running) -> None:
    federation = running.federation
    print(f"the first round ended {running.first_round:.0f} s after the first command")  # pytest -rP shows it
    assert running.first_round < FIRST_ROUND_SECONDS
    local = local_run(federation, "local")
    result = json.loads((federation.folder / "straight" / "result.json").read_text())
    assert [row[0] for row in result["accuracy"]] == local.intra
    assert (result["bytes_up"], result["bytes_down"]) == (local.bytes_up, local.bytes_down)
    assert result["messages"] == 3 * 2 + 2  # one per site and round, and one for the end of the last round
    assert_same_as("local", federation, "straight")


def test_same_numbers_with_compression_after_a_killed_server_and_a_full_disk(running: Running) -> None:
    # the sites agree to another file, in which payloads are compressed
    federation = running.federation
    broken = federation.write("broken", **COMPRESSED)
    for node in running.nodes.values():
        node.terminate()  # all at once
    for node in running.nodes.values():
        federation.end(node)
    running.nodes.update(zip(SITES, federation.join_with_policy(broken), strict=True))

    # server and SuperLink are killed together; the nodes connect to a new SuperLink
    server = federation.serve(broken)
    federation.until(lambda: checkpoint.latest(federation.folder / "broken" / "checkpoint"), server)
    federation.end(server, signal.SIGKILL)
    assert len(federation.events("broken")) < 3

    # then the disk is full at the next checkpoint; the one before is intact
    server = federation.serve(broken, "--resume", FEDCHOIR_PLUGINS=str(FAULTY_PLUGIN), FEDCHOIR_TEST_FULL="1")
    federation.finished(server, code=4)
    assert re.search(
        "stopped: the checkpoint of round . could not be written.*No space left", federation.log("serve.log")
    )
    assert len([*(federation.folder / "broken" / "checkpoint").glob("round-*")]) in (1, 2)
    server = federation.serve(broken, "--resume")
    federation.finished(server)

    # bytes are those of the compressed payloads, which are smaller in both directions
    compressed = local_run(federation, "local-compressed", COMPRESSED["compress"], public_batch=40)
    plain = local_run(federation, "local-plain", public_batch=40)
    assert_same_as("local-compressed", federation, "broken")
    assert compressed.bytes_up < 0.4 * plain.bytes_up
    assert compressed.bytes_down < 0.4 * plain.bytes_down
    assert "compressed to" in federation.fedchoir("node", "log", "--work", "work-green")


def test_a_server_that_asks_for_another_method_gets_nothing(running: Running) -> None:
    federation = running.federation
    other = federation.write("other", method="fedmd", wait=25, **COMPRESSED)
    server = federation.serve(other)

    # meanwhile: a node that has agreed to nothing does not start, and a budget without noise is refused before that
    stranger = federation.node("red", "--work", "work-stranger")
    budget = federation.init("red", other, "--max-epsilon", "8")
    federation.finished(stranger, code=2)
    federation.finished(budget, code=2)
    assert "give --federation FILE, this site's copy of the federation's file" in federation.log("node-red.log")
    assert "dp_noise = 0; this site has a privacy budget" in federation.log("init-red.log")
    assert not (federation.folder / federation.policy("red", other)).exists()

    federation.finished(server, code=2)  # no site takes part
    refusal = "refused: the server asks for 'fedmd', and the agreed file has 'fccl+'"
    for name in SITES:
        assert f"{name}: {refusal}" in federation.log(f"node-{name}.log")
        assert f"{name}: {refusal}" in federation.log("serve.log")
    assert not federation.events("other")

    # all of that is in the site's own log
    lines = federation.fedchoir("node", "log", "--work", "work-green").splitlines()
    assert "green has agreed to" in lines[0]
    assert sum("sends logits 3 tensors with 160 numbers" in line for line in lines) >= 3
    assert lines[-1].endswith(refusal)


def test_check_reports_a_site_that_does_not_fit(running: Running) -> None:
    """The last test of these nodes: red gets another public set."""
    federation = running.federation
    federation.end(running.nodes["red"])
    path = federation.write("check", **COMPRESSED)
    federation.join_with_policy(path, "--public", "photos", names=["red"])
    check = federation.start("check.log", "federation", "check", path.name)
    federation.finished(check, code=2)
    assert re.search("fedchoir: (red|green): its public set is not that of (green|red)", federation.log("check.log"))
    assert not (federation.folder / "check" / "events.jsonl").exists()
