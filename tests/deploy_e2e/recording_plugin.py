"""A plug-in for tests: FCCL+ whose clients record their payloads, and a server that records what arrives.

In round 1 the client ``red`` raises after its payload was asked for: it drops out of a secure sum.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.deploy.transport import GridTransport
from fedchoir.engines.messages import Envelope
from fedchoir.methods.fccl_plus import FCCLPlus
from fedchoir.payload import Payload, sends

RECORDS = Path(os.environ.get("FEDCHOIR_TEST_RECORDS", ""))


class RecordingFCCLPlus(FCCLPlus):
    name = "recording"
    title = "for tests"

    @sends(logits="B C", similarity="B B-1")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        payload = super().share(client, batch)
        if client.name == "red" and client.round == 1:
            raise RuntimeError("the scanner is on fire")
        record("sent", client, batch, payload)
        return payload

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        record("received", client, batch, consensus)
        super().public_update(client, batch, consensus)


def record(what: str, client: Client, batch: PublicBatch, payload: Payload) -> None:
    path = RECORDS / f"{what}-{client.name}-{batch.round}-{batch.index}.npz"
    np.savez(path, **{name: t.cpu().numpy() for name, t in payload.items()})


def recording_read(self: GridTransport, reply: Any) -> Envelope | str:
    envelope = original_read(self, reply)
    if isinstance(envelope, Envelope):
        name = uuid.uuid4().hex
        for number, blob in enumerate(envelope.blobs):
            (RECORDS / f"wire-{name}-{number}").write_bytes(blob)
        (RECORDS / f"wire-{name}.json").write_text(envelope.text())
    return envelope


original_read = GridTransport._read
if "FEDCHOIR_TEST_RECORDS" in os.environ:  # only in the processes that a test starts
    GridTransport._read = recording_read  # type: ignore[method-assign]
