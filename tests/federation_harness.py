"""A federation on the local engine that a test runs round by round, with access to its clients."""

from __future__ import annotations

from typing import Any

import torch

from fedchoir import Experiment
from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.core.server import Server
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.payload import Payload


class FederationHarness:
    """The clients, the method and the server of an experiment. It writes no files."""

    def __init__(self, experiment: Experiment, device: str = "cpu") -> None:
        self.method: Any
        self.method, scenario, public = prepare(make_plan(experiment))
        self.spec = self.method.spec
        self.engine = LocalEngine(self.method, scenario, public, device=torch.device(device))
        self.clients: list[Client] = self.engine.clients
        self._rounds = Server(self.method, self.engine, tuple(scenario.tests)).rounds()

    def run_rounds(self, count: int = 1) -> list[dict[str, Any]]:
        """Run the next rounds and return their events."""
        return [event for _ in range(count) for event in next(self._rounds)]

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """A copy of every client's weights."""
        return [client.snapshot() for client in self.clients]

    def batch(self, size: int = 16) -> PublicBatch:
        """The first public batch."""
        return PublicBatch(round=0, epoch=0, index=0, start=0, size=size)

    def share(self, function: str = "share") -> dict[int, Payload]:
        """Every client's payload for the first public batch."""
        return {c.index: getattr(self.method, function)(c, self.batch()) for c in self.clients}
