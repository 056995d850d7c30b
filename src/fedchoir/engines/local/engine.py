"""The local engine: all clients in one process, one after the other, on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedchoir.core.actions import Action, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.exchange import Reply
from fedchoir.core.training import EagerTrainer, Trainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.client_factory import new_client
from fedchoir.engines.local.client_pool import ClientPool
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.engines.local.state_cache import Read
from fedchoir.methods.base import Method
from fedchoir.payload import Payload

__all__ = ["LocalEngine", "Progress", "fast_trainer", "new_client"]

STATE_BUDGET = 2e9

if TYPE_CHECKING:
    from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient

Progress = Callable[[str, str], None]
"""Told (client, phase) whenever a client starts on something."""


class LocalEngine:
    """Runs a method's actions on clients that live here."""

    def __init__(
        self,
        method: Method,
        scenario: Scenario,
        public: PublicSet | None,
        *,
        device: torch.device,
        precision: str = "fp32",
        fused: bool = False,
        progress: Progress = lambda client, phase: None,
        trainer: Trainer | None = None,
        budget: float = STATE_BUDGET,
        folder: Path | None = None,
        share: Sequence[int] | None = None,
    ) -> None:
        """``budget``: bytes of memory for clients' states; what does not fit lies in ``folder``. ``share``: the clients
        that live here, where others live in other processes."""
        self.method = method
        self.device = device
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._progress = progress
        self._scored: dict[int, list[float]] = {}  # rows of clients as they are
        self._tests = [test.to(device) for test in scenario.tests.values()]
        self._own = [scenario.own_tests[data.name].to(device) for data in scenario.clients if scenario.own_tests]
        task, params = method.task, method.params
        view = None
        if public is not None:
            view = PublicView(public, seed=task.seed, kind=params.public_augment, device=device)
        self.clients = ClientPool(
            method, scenario.clients, view, trainer or fast_trainer(device), device=device, precision=precision,
            fused=fused, budget=budget, folder=folder, here=share,
        )  # fmt: skip
        self._desks: dict[int, SecureAggregationClient] = {}  # where answers are hidden in sums

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]:
        """Let each client do all the actions; the last one's answer, if it is an exchange, comes back. Clients with a
        veil hide it in a sum."""
        for k in clients if masking is None else masking:
            (client,) = self.clients.gather([k])
            self._scored.pop(k, None)
            client.begin(round_index)
            payloads: list[Payload] = []
            for action in actions:
                self._progress(client.name, action.function.__name__)
                with self._timed("public" if action.batches else "local"):
                    payloads = perform(client, action)
            reply = Reply(k, payloads, client.report())
            yield reply if masking is None else self._hidden(reply, masking[k])

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        for k, request in requests.items():
            yield Reply(k, keys=self._desk(k).exchange_keys(request))

    def _hidden(self, reply: Reply, masking_request: Mapping[str, Any]) -> Reply:
        try:
            payloads, keys = self._desk(reply.client).hide(reply.payloads, masking_request)
        except ValueError as error:  # numbers that are not finite cannot be summed
            return replace(reply, payloads=(), error=str(error))
        return replace(reply, payloads=payloads, keys=keys)

    def _desk(self, k: int) -> SecureAggregationClient:
        from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient

        return self._desks.setdefault(k, SecureAggregationClient(k, {}))

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """Accuracy in percent: one row a client, one column a test set, and one more for the client's own share of
        the tests where there is one. One global model is scored only once, unless the score depends on the client's
        own data; a client's own model only if it was at work since it was scored last."""
        here = self.clients.here
        if weights is not None and not self.method.evaluates_per_client:
            row = self.score(weights, range(len(self._tests) + len(self._own)))
            shared, own = row[: len(self._tests)], row[len(self._tests) :]
            return [[*shared, *own[k : k + 1]] for k in here]
        with self._timed("evaluate"):
            if weights is not None:
                return [self._row_with(self.clients[k], weights, self._tests_of(k)) for k in here]
            for k in here:
                if k not in self._scored:
                    self._scored[k] = self._row(self.clients[k], self._tests_of(k))
            return [list(self._scored[k]) for k in here]

    def score(self, weights: dict[str, Tensor], which: Sequence[int]) -> list[float]:
        """What one global model scores on some of the test sets; the clients' own shares count on after the others."""
        tests = [*self._tests, *self._own]
        with self._timed("evaluate"):
            return self._row_with(self.clients[self.clients.here[0]], weights, [tests[number] for number in which])

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        return self.clients.states()

    def saved(self, read: Read) -> None:
        self.clients.saved(read)

    def load(self, read: Read) -> None:
        self._scored.clear()
        self.clients.load(read)

    def close(self) -> None:
        self.clients.close()

    def model_shapes(self) -> dict[str, Tensor]:
        """The state of the shared architecture, for checking weights that arrive."""
        return self.clients.pattern.state_dict()

    def _tests_of(self, k: int) -> list[ImageSet]:
        return [*self._tests, *self._own[k : k + 1]]

    def _row(self, client: Client, tests: Sequence[ImageSet]) -> list[float]:
        self._progress(client.name, "evaluate")
        return self.method.evaluate(client, tests)

    def _row_with(self, client: Client, weights: dict[str, Tensor], tests: Sequence[ImageSet]) -> list[float]:
        own = client.snapshot()
        client.model.load_state_dict(weights)
        row = self._row(client, tests)
        client.model.load_state_dict(own)
        return row

    def _timed(self, phase: str) -> _Stopwatch:
        return _Stopwatch(self, phase)


class _Stopwatch:
    def __init__(self, engine: LocalEngine, phase: str) -> None:
        self._engine, self._phase = engine, phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)
        self._engine.seconds[self._phase] += time.perf_counter() - self._start


def fast_trainer(device: torch.device) -> Trainer:
    """Captured steps on a GPU, plain ones elsewhere."""
    return CudaGraphTrainer() if device.type == "cuda" else EagerTrainer()
