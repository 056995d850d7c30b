"""A plug-in for tests: FedMD whose client ``red`` does something wrong in each round, as a hostile or broken site."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from fedchoir.federation import perform
from fedchoir.federation.client import Client
from fedchoir.federation.payload import Payload, says
from fedchoir.federation.phases import PublicBatch
from fedchoir.methods.fedmd import FedMD

TROUBLES = ("raises", "hangs", "nan", "shape", "undeclared", "huge", "fine")


class Troubled(FedMD):
    """In round t the client red suffers from ``TROUBLES[t]``."""

    name = "troubled"
    title = "for tests"

    @says(logits="B C")
    def speak(self, client: Client, batch: PublicBatch) -> Payload:
        payload = super().speak(client, batch)
        trouble = TROUBLES[client.round] if client.name == "red" else "fine"
        if trouble == "fine":
            return payload
        perform._check_outgoing = lambda *_: None  # a hostile site's own software checks nothing
        logits = payload["logits"]
        if trouble == "raises":
            raise RuntimeError("the scanner is on fire")
        if trouble == "hangs":
            time.sleep(600)
        return {
            "nan": Payload(logits=logits * float("nan")),
            "shape": Payload(logits=logits[:, :-1]),
            "undeclared": Payload(logits=logits, patients=torch.zeros(3)),
            "huge": Payload(logits=torch.zeros(4_000_000)),
        }[trouble]


class Gated(FedMD):
    """FedMD whose clients tell when they begin to speak, and wait as long as a test holds them."""

    name = "gated"
    title = "for tests"

    @says(logits="B C")
    def speak(self, client: Client, batch: PublicBatch) -> Payload:
        folder, who = Path(os.environ["FEDCHOIR_TEST_GATES"]), f"{client.name}-{client.round}"
        (folder / f"began-{who}").touch()
        while (folder / f"hold-{who}").exists():
            time.sleep(0.1)
        return super().speak(client, batch)
