"""The parent's side of an engine worker."""

from collections.abc import Sequence
from typing import Any

import torch

from fedchoir.core.actions import Action
from fedchoir.engines.messages import Envelope, pack_action
from fedchoir.engines.multiprocess.data_transfer import from_frames, pack, to_frames, unpack
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.subprocess_channel import ChildProcess


class WorkerProcess:
    """A process with a device and some of the clients. It holds nothing that a checkpoint does not.

    Where processes share a GPU through NVIDIA's MPS, those with ``priority`` are served before the others.
    """

    def __init__(self, device: torch.device, clients: Sequence[int], threads: int, *, priority: bool = True) -> None:
        self.device, self.clients = device, list(clients)
        self._child = ChildProcess.spawn(
            f"the process on {device}",
            "fedchoir.engines.multiprocess.worker",
            {
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "CUDA_MPS_CLIENT_PRIORITY": "0" if priority else "1",
            },
        )

    def call(
        self, function: str, *arguments: Any, actions: Sequence[Action] = (), shared: dict[int, bytes] | None = None
    ) -> None:
        """Start a call. ``actions`` are for the clients of the first argument; ``shared`` are payloads that were
        serialized for other processes."""
        envelope = Envelope({"call": function}, shared={} if shared is None else shared)
        envelope.header["arguments"] = pack(envelope, arguments)
        envelope.header["actions"] = [pack_action(envelope, action, *arguments[0]) for action in actions]
        self.send(envelope)

    def send(self, envelope: Envelope) -> None:
        self._child.send(to_frames(envelope))

    def receive(self) -> tuple[str, Any]:
        """The next message of a call, ``progress``, ``value`` or ``done``, with its value. Errors are raised here."""
        envelope = from_frames(self._child.receive())
        kind, value = envelope.header["kind"], unpack(envelope, envelope.header["value"])
        if kind == "usage error":
            raise UsageError(value)
        if kind in ("error", "gpu full"):
            failed = WorkerError(f"{self._child.name}: {value}")
            failed.gpu_full = kind == "gpu full"
            raise failed
        return kind, value

    def fileno(self) -> int:
        return self._child.fileno()

    def stop(self) -> None:
        self._child.close()
