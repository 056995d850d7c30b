"""What crosses the wire between real processes: sums without summands, and noise that is paid for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.conftest import MODELS, Server
from tests.privacy.test_secure_sum import assert_uniform

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.client import MASKED

pytestmark = pytest.mark.e2e
PLUGIN = Path(__file__).parent / "overheard.py"


def test_secure_sums_survive_a_drop_out_and_noise_stops_at_its_budget(trio: Server) -> None:
    notes = trio.folder / "notes"
    notes.mkdir()
    plugin = {"FEDCHOIR_PLUGINS": str(PLUGIN), "FEDCHOIR_TEST_NOTES": str(notes)}
    for name in trio.names:
        keys = ("--key", f"keys/{name}", "--ca", "keys/ca.crt", "--secure", "sums", "--peers", "keys")
        trio.node(name, *keys, **plugin)
    path = trio.write("secure", method="overheard", secure=True, settings={"sync": "epoch"})
    trio.finished(trio.serve(path, **plugin))
    events = trio.events("secure")
    why = [{out["client"]: out["why"] for out in event["left_out"]} for event in events]
    assert [set(outs) for outs in why] == [set(), {"red"}, set()]
    assert "RuntimeError: the scanner is on fire" in why[1]["red"]
    # round 0: keys twice and the answer; round 1: the answer, and two lift the masks; round 2: red gives keys again
    # (twice), the answer, and the end of the run
    assert [event["messages"] for event in events] == [3 * 3, 3 + 2, 2 + 3 + 3]
    assert_means_were_heard(notes)
    assert_nothing_plain_came(notes)

    # a server that asks for plain answers gets none
    trio.finished(trio.serve(trio.write("plain", rounds=1, settings={"sync": "epoch"})), code=3)
    assert "green answers only in secure sums, and the server asks without one" in trio.log("serve.log")

    # the same nodes, another run: ε is told each round, and the run ends before it would exceed its budget
    private = {"sync": "epoch", "dp_noise": 1.0, "dp_epsilon": 9.0}
    trio.finished(trio.serve(trio.write("private", method="fedmd", rounds=3, secure=True, settings=private)))
    log, events = trio.log("serve.log"), trio.events("private")
    told = re.findall(r"round (\d+): ε for δ = 1e-05: green ([\d.]+), red ([\d.]+), blue ([\d.]+)", log)
    assert [int(number) for number, *_ in told] == list(range(1, len(events) + 1))
    assert len(events) == 2
    spent = [float(cost) for _, cost, *_ in told]
    assert spent == sorted(spent)
    assert spent[-1] <= 9.0
    assert [round(event["privacy"]["epsilon"]["green"], 2) for event in events] == spent


def assert_means_were_heard(notes: Path) -> None:
    """What sites heard is the mean of what those in the sum said, within 1e-4."""
    checked = 0
    for number in range(2):
        names = [name for name in sorted(MODELS) if (name, number) != ("red", 1)]
        for batch in range(3):
            said = [np.load(notes / f"said-{name}-{number}-{batch}.npz") for name in names]
            received = np.load(notes / f"heard-green-{number}-{batch}.npz")
            for tensor in ("logits", "similarity"):
                assert np.abs(received[tensor] - np.mean([one[tensor] for one in said], axis=0)).max() < 1e-4
                checked += 1
    assert checked == 12


def assert_nothing_plain_came(notes: Path) -> None:
    """Every answer is one row of words that look drawn at random, and unlike what any site said."""
    rows: list[np.ndarray[Any, Any]] = []
    for header in notes.glob("wire-*.json"):
        parts = json.loads(header.read_text()).get("parts", [])
        blobs = [header.with_name(f"{header.stem}-{number}").read_bytes() for number in parts]
        for payload in map(Payload.from_bytes, blobs):
            assert set(payload) == {MASKED}
            rows.append(payload[MASKED].numpy().view(np.uint32))
    assert len(rows) == 3 + 2 + 3
    assert_uniform(np.concatenate(rows))
    for row in rows:
        for name in MODELS:
            files = sorted(notes.glob(f"said-{name}-0-*.npz"))
            said = np.concatenate([np.load(f)[tensor].ravel() for f in files for tensor in ("logits", "similarity")])
            assert row.size == said.size
            assert abs(np.corrcoef(row, said)[0, 1]) < 5 / np.sqrt(row.size)
