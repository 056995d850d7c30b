"""A plug-in for tests: FCCL+ whose clients put down what they say and hear, and a server that puts down what comes.

In round 1 the client ``red`` raises, after its answer was asked for: it drops out of a sum.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.deploy import transport as post
from fedchoir.engines.messages import Envelope
from fedchoir.methods.fccl_plus import FCCLPlus
from fedchoir.payload import Payload, sends

NOTES = Path(os.environ.get("FEDCHOIR_TEST_NOTES", ""))


class Overheard(FCCLPlus):
    name = "overheard"
    title = "for tests"

    @sends(logits="B C", similarity="B B-1")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        payload = super().share(client, batch)
        if client.name == "red" and client.round == 1:
            raise RuntimeError("the scanner is on fire")
        put_down("said", client, batch, payload)
        return payload

    def listen(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        put_down("heard", client, batch, consensus)
        super().listen(client, batch, consensus)


def put_down(what: str, client: Client, batch: PublicBatch, payload: Payload) -> None:
    path = NOTES / f"{what}-{client.name}-{batch.round}-{batch.index}.npz"
    np.savez(path, **{name: t.cpu().numpy() for name, t in payload.items()})


def overhear(self: post.GridTransport, reply: Any) -> Envelope | str:
    answer = read(self, reply)
    if isinstance(answer, Envelope):
        name = uuid.uuid4().hex
        for number, blob in enumerate(answer.blobs):
            (NOTES / f"wire-{name}-{number}").write_bytes(blob)
        (NOTES / f"wire-{name}.json").write_text(answer.text())
    return answer


read = post.GridTransport._read
if "FEDCHOIR_TEST_NOTES" in os.environ:  # in the processes of the test, and not where tests are collected
    post.GridTransport._read = overhear  # type: ignore[method-assign]
