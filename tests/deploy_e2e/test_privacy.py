"""Privacy between real processes: masked payloads on the wire, and a run that stops at its privacy budget."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy_e2e.conftest import MODELS, Federation
from tests.helpers import assert_uniform

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.messages import MASKED

pytestmark = pytest.mark.e2e
PLUGIN = Path(__file__).parent / "recording_plugin.py"


def test_secure_aggregation_with_a_drop_out_and_a_privacy_budget(four_sites: Federation) -> None:
    federation, records = four_sites, four_sites.folder / "records"
    records.mkdir()
    plugin = {"FEDCHOIR_PLUGINS": str(PLUGIN), "FEDCHOIR_TEST_RECORDS": str(records)}
    changes: dict[str, Any] = {"method": "recording", "settings": {"sync": "epoch"}}
    path = federation.write("secure", secure="strict", **changes)
    nodes = federation.join(path, "--secure", "strict", "--peers", "keys", **plugin)

    # a server that asks for the same without secure aggregation gets nothing
    federation.finished(federation.serve(federation.write("plain", **changes), **plugin), code=3)
    refusal = "refused: this site requires strict secure aggregation, and the server asks without it"
    assert f"green: {refusal}" in federation.log("serve.log")
    for name in federation.names:
        assert f"{name}: {refusal}" in federation.log(f"node-{name}.log")
    assert not [*records.glob("sent-*")]

    federation.finished(federation.serve(path, **plugin))
    events = federation.events("secure")
    why = [{out["client"]: out["why"] for out in event["left_out"]} for event in events]
    assert [set(outs) for outs in why] == [set(), {"red"}, set()]
    assert why[1]["red"] == "RuntimeError at this site; its operator finds the reason in its log"
    assert "red: failed: RuntimeError: the scanner is on fire" in federation.log("node-red.log")
    # round 0: two key messages, the exchange and the shares of its masks; round 1: the exchange, and three clients sign
    # who sent and reveal shares; round 2: two key messages to red, the exchange, its shares, and the end of the run
    assert [event["messages"] for event in events] == [4 * 4, 4 + 2 * 3, 2 + 4 + 4 + 4]
    assert_clients_received_means(records)
    assert_payloads_were_masked(records)

    # another agreement, in the same work folders: ε is logged each round at both ends, and the run ends before it would
    # exceed its budget
    for node in nodes:
        node.terminate()  # all at once
    private = {"sync": "epoch", "dp_noise": 1.0, "dp_epsilon": 9.0}
    path = federation.write("private", method="fedmd", secure="strict", settings=private)
    for node in nodes:
        federation.end(node)
    federation.join(path, "--secure", "strict", "--peers", "keys", "--max-epsilon", "9")
    federation.finished(federation.serve(path))
    log, events = federation.log("serve.log"), federation.events("private")
    logged = re.findall(
        r"round (\d+): ε for δ = 1e-05: green ([\d.]+), red ([\d.]+), blue ([\d.]+), grey ([\d.]+)", log
    )
    assert [int(number) for number, *_ in logged] == list(range(1, len(events) + 1))
    assert len(events) == 2
    spent = [float(cost) for _, cost, *_ in logged]
    assert spent == sorted(spent)
    assert spent[-1] <= 9.0
    assert [round(event["privacy"]["epsilon"]["green"], 2) for event in events] == spent
    for name in federation.names:
        assert f"6 noisy steps cost ε {spent[1] - spent[0]:.2f}, now {spent[1]:.2f} of 9" in federation.log(
            f"node-{name}.log"
        )


def assert_clients_received_means(records: Path) -> None:
    """The aggregate is the mean of the payloads in the sum, within 1e-4."""
    checked = 0
    for number in range(2):
        names = [name for name in sorted(MODELS) if (name, number) != ("red", 1)]
        for batch in range(3):
            sent = [np.load(records / f"sent-{name}-{number}-{batch}.npz") for name in names]
            received = np.load(records / f"received-green-{number}-{batch}.npz")
            for tensor in ("logits", "similarity"):
                assert np.abs(received[tensor] - np.mean([one[tensor] for one in sent], axis=0)).max() < 1e-4
                checked += 1
    assert checked == 12


def assert_payloads_were_masked(records: Path) -> None:
    """Every payload on the wire is one row of integers that look random and are uncorrelated with what was sent."""
    rows: list[np.ndarray[Any, Any]] = []
    for header in records.glob("wire-*.json"):
        numbers = json.loads(header.read_text()).get("payloads", [])
        blobs = [header.with_name(f"{header.stem}-{number}").read_bytes() for number in numbers]
        for payload in map(Payload.from_bytes, blobs):
            assert set(payload) == {MASKED}
            rows.append(payload[MASKED].numpy().view(np.uint32))
    assert len(rows) == 4 + 3 + 4
    assert_uniform(np.concatenate(rows))
    for row in rows:
        for name in MODELS:
            files = sorted(records.glob(f"sent-{name}-0-*.npz"))
            sent = np.concatenate([np.load(f)[tensor].ravel() for f in files for tensor in ("logits", "similarity")])
            assert row.size == sent.size
            assert abs(np.corrcoef(row, sent)[0, 1]) < 5 / np.sqrt(row.size)
