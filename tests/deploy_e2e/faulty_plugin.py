"""A plug-in for tests: FedMD whose client ``red`` has a different fault in each round, as a hostile or broken site."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import torch

from fedchoir.core import actions, checkpoint
from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.deploy import run_folder
from fedchoir.methods.fedmd import FedMD
from fedchoir.payload import Payload, sends

FAULTS = ("raises", "hangs", "nan", "shape", "undeclared", "huge", "full", "fine")


class FaultyFedMD(FedMD):
    """In round t the client ``red`` has the fault ``FAULTS[t]``."""

    name = "faulty"
    title = "for tests"

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        payload = super().share(client, batch)
        fault = FAULTS[client.round] if client.name == "red" else "fine"
        if fault == "fine":
            return payload
        actions._check_outgoing = lambda *_: None  # a hostile site checks nothing
        logits = payload["logits"]
        if fault == "raises":
            raise RuntimeError("the scanner is on fire")
        if fault == "full":
            run_folder.save_tensors = no_space  # each message has a process of its own
            return payload
        if fault == "hangs":
            time.sleep(600)
        return {
            "nan": Payload(logits=logits * float("nan")),
            "shape": Payload(logits=logits[:, :-1]),
            "undeclared": Payload(logits=logits, patients=torch.zeros(3)),
            "huge": Payload(logits=torch.zeros(4_000_000)),
        }[fault]


def no_space(path: Path, tensors: Any) -> None:
    """Write half a file, then fail as a full disk does."""
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


if "FEDCHOIR_TEST_FULL" in os.environ:  # the server's disk is full
    checkpoint.save_tensors = no_space


class PausedFedMD(FedMD):
    """FedMD whose clients create a file when they begin to share, and wait while a test holds them."""

    name = "paused"
    title = "for tests"

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        folder, who = Path(os.environ["FEDCHOIR_TEST_PAUSES"]), f"{client.name}-{client.round}"
        (folder / f"began-{who}").touch()
        while (folder / f"hold-{who}").exists():
            time.sleep(0.1)
        return super().share(client, batch)
