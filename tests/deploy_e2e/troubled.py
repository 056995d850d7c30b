"""A plug-in for tests: FedMD whose client ``red`` does something wrong in each round, as a hostile or broken site."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import torch

from fedchoir.core import checkpoint, perform
from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.deploy import client_worker as site
from fedchoir.methods.fedmd import FedMD
from fedchoir.payload import Payload, sends

TROUBLES = ("raises", "hangs", "nan", "shape", "undeclared", "huge", "full", "fine")


class Troubled(FedMD):
    """In round t the client red suffers from ``TROUBLES[t]``."""

    name = "troubled"
    title = "for tests"

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        payload = super().share(client, batch)
        trouble = TROUBLES[client.round] if client.name == "red" else "fine"
        if trouble == "fine":
            return payload
        perform._check_outgoing = lambda *_: None  # a hostile site's own software checks nothing
        logits = payload["logits"]
        if trouble == "raises":
            raise RuntimeError("the scanner is on fire")
        if trouble == "full":
            site.save_tensors = no_space  # in this message's own process
            return payload
        if trouble == "hangs":
            time.sleep(600)
        return {
            "nan": Payload(logits=logits * float("nan")),
            "shape": Payload(logits=logits[:, :-1]),
            "undeclared": Payload(logits=logits, patients=torch.zeros(3)),
            "huge": Payload(logits=torch.zeros(4_000_000)),
        }[trouble]


def no_space(path: Path, tensors: Any) -> None:
    """Writes half a file, and then the disk is full."""
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


if "FEDCHOIR_TEST_FULL" in os.environ:  # a server whose disk is full
    checkpoint.save_tensors = no_space


class Gated(FedMD):
    """FedMD whose clients tell when they begin to speak, and wait as long as a test holds them."""

    name = "gated"
    title = "for tests"

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        folder, who = Path(os.environ["FEDCHOIR_TEST_GATES"]), f"{client.name}-{client.round}"
        (folder / f"began-{who}").touch()
        while (folder / f"hold-{who}").exists():
            time.sleep(0.1)
        return super().share(client, batch)
