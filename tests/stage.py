"""A federation on the local engine that a test plays round by round and looks into."""

from __future__ import annotations

from typing import Any

import torch

from fedchoir import Experiment, methods
from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.core.server import Server
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments import config as experiment
from fedchoir.experiments import run as runner
from fedchoir.payload import Payload

State = dict[str, torch.Tensor]


class FederationHarness:
    """Clients, method and loop of an experiment, without a folder."""

    def __init__(self, settings: Experiment) -> None:
        plan = experiment.plan(settings)
        scenario, public = runner.load(plan), runner.load_public_set(plan)
        self.task = runner.make_task(plan, scenario, public)
        self.method: Any = methods.get(settings.method)(plan.params, self.task)
        self.engine = LocalEngine(self.method, scenario, public, device=torch.device("cpu"))
        self.clients: list[Client] = self.engine.clients
        self._federation = Server(self.method, self.engine, tuple(scenario.tests))
        self._rounds = self._federation.rounds()

    def play(self, rounds: int = 1) -> list[dict[str, Any]]:
        """Play the next rounds; their events."""
        return [event for _ in range(rounds) for event in next(self._rounds)]

    def weights(self) -> list[State]:
        return [client.snapshot() for client in self.clients]

    def batch(self, size: int = 16) -> PublicBatch:
        return PublicBatch(round=0, epoch=0, index=0, start=0, size=size)

    def say(self, voice: str = "speak") -> dict[int, Payload]:
        """What every client says about one public batch now."""
        return {c.index: getattr(self.method, voice)(c, self.batch()) for c in self.clients}


def same(one: list[State], two: list[State]) -> bool:
    """Bit by bit."""
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(one, two, strict=True)
    )
