"""The parent's side of one process: it starts it, writes to it, hears from it, and knows how it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import torch

from fedchoir.engines.messages import Envelope
from fedchoir.engines.multiprocess.pipe import Pipe
from fedchoir.utils.errors import UsageError, WorkerError


class Process:
    """A process with a device and a share of the clients. It holds nothing that a checkpoint does not.

    Where processes share a GPU through NVIDIA's MPS, ``first`` ones are served before the others.
    """

    def __init__(self, device: torch.device, share: Sequence[int], threads: int, *, first: bool = True) -> None:
        self.device, self.share = device, tuple(share)
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedchoir.engines.multiprocess.worker", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "CUDA_MPS_CLIENT_PRIORITY": "0" if first else "1",
            },
        )
        theirs.close()
        self.pipe = Pipe(ours.detach())

    def send(self, letter: Envelope) -> None:
        try:
            self.pipe.send(letter)
        except OSError:
            raise self._gone() from None

    def receive(self) -> Envelope:
        """What it says next; an error of its own is raised here."""
        try:
            letter = self.pipe.receive()
        except (EOFError, OSError):
            raise self._gone() from None
        if letter.header["said"] == "failed":
            why = letter.header["why"]
            raise UsageError(why) if letter.header["usage"] else WorkerError(f"the process on {self.device}: {why}")
        return letter

    def _gone(self) -> WorkerError:
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return WorkerError(f"the process on {self.device} {how}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.pipe.close()
