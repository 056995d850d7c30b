"""The local engine: all clients in one process on one device, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedchoir.core.actions import Action, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.exchange import Reply
from fedchoir.core.interfaces import ReadState
from fedchoir.core.training import EagerTrainer, Trainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.client_pool import ClientPool
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.methods.base import Method
from fedchoir.payload import Payload

if TYPE_CHECKING:
    from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient

STATE_BUDGET = 2e9  # bytes

Progress = Callable[[str, str], None]
"""Called with (client, phase) whenever a client starts a phase."""


class LocalEngine:
    """Runs a method's actions on clients in this process."""

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
        clients: Sequence[int] | None = None,
    ) -> None:
        """``budget``: bytes of memory for clients' states; the others are files in ``folder``. ``clients``: the indices
        of the clients in this process, where other processes have the rest."""
        self.method = method
        self.device = device
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._progress = progress
        self._rows: dict[int, list[float]] = {}  # accuracies of clients that have not changed since
        self._tests = [test.to(device) for test in scenario.tests.values()]
        self._own_tests = [scenario.own_tests[data.name].to(device) for data in scenario.clients if scenario.own_tests]
        seed, augment = method.spec.seed, method.params.public_augment
        view = None if public is None else PublicView(public, seed=seed, kind=augment, device=device)
        self.clients = ClientPool(
            method, scenario.clients, view, trainer or fast_trainer(device), device=device, precision=precision,
            fused=fused, budget=budget, folder=folder, indices=clients,
        )  # fmt: skip
        self._secure_clients: dict[int, SecureAggregationClient] = {}

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]:
        """Let each client run all actions; a reply holds the last one's payloads. With ``masking`` only its clients
        run, and their payloads are masked for secure aggregation."""
        for k in clients if masking is None else masking:
            client = self.clients.changing(k)
            self._rows.pop(k, None)
            client.begin(round_index)
            payloads: list[Payload] = []
            for action in actions:
                self._progress(client.name, action.function.__name__)
                with self._timed("public" if action.batches else "local"):
                    payloads = perform(client, action)
            reply = Reply(k, payloads, client.report())
            yield reply if masking is None else self._masked(reply, masking[k])

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        """Each client's response to a message about keys."""
        for k, request in requests.items():
            yield Reply(k, keys=self._secure_client(k).exchange_keys(request))

    def _masked(self, reply: Reply, request: Mapping[str, Any]) -> Reply:
        try:
            payloads, keys = self._secure_client(reply.client).mask_payloads(reply.payloads, request)
        except ValueError as error:  # values that are not finite cannot be summed
            return replace(reply, payloads=(), error=str(error))
        return replace(reply, payloads=payloads, keys=keys)

    def _secure_client(self, k: int) -> SecureAggregationClient:
        from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient  # needs `cryptography`

        return self._secure_clients.setdefault(k, SecureAggregationClient(k, {}))

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """Accuracies in percent: one row per client, one column per test set, and one for the client's own share of
        the tests where there is one. A global model is evaluated once, unless its accuracy depends on the client's
        data; a client's own model only if it has changed."""
        indices = self.clients.indices
        if weights is not None and not self.method.evaluates_per_client:
            row = self.evaluate_global(weights, range(len(self._tests) + len(self._own_tests)))
            shared, own = row[: len(self._tests)], row[len(self._tests) :]
            return [[*shared, *own[k : k + 1]] for k in indices]
        with self._timed("evaluate"):
            if weights is not None:
                return [self._row_with(self.clients[k], weights, self._tests_of(k)) for k in indices]
            for k in indices:
                if k not in self._rows:
                    self._rows[k] = self._row(self.clients[k], self._tests_of(k))
            return [list(self._rows[k]) for k in indices]

    def evaluate_global(self, weights: dict[str, Tensor], tests: Sequence[int]) -> list[float]:
        """Accuracies of a global model on some test sets by number; the clients' own shares come after the others."""
        sets = [*self._tests, *self._own_tests]
        with self._timed("evaluate"):
            return self._row_with(self.clients[self.clients.indices[0]], weights, [sets[number] for number in tests])

    def _tests_of(self, k: int) -> list[ImageSet]:
        return [*self._tests, *self._own_tests[k : k + 1]]

    def _row(self, client: Client, tests: Sequence[ImageSet]) -> list[float]:
        self._progress(client.name, "evaluate")
        return self.method.evaluate(client, tests)

    def _row_with(self, client: Client, weights: dict[str, Tensor], tests: Sequence[ImageSet]) -> list[float]:
        own = client.snapshot()
        client.model.load_state_dict(weights)
        row = self._row(client, tests)
        client.model.load_state_dict(own)
        return row

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        return self.clients.states()

    def saved(self, read: ReadState) -> None:
        self.clients.saved(read)

    def load(self, read: ReadState) -> None:
        self._rows.clear()
        self.clients.load(read)

    def close(self) -> None:
        self.clients.close()

    def model_shapes(self) -> dict[str, Tensor]:
        """The state dict of the shared architecture, for checking weights that arrive."""
        return self.clients.template.state_dict()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] += time.perf_counter() - start


def fast_trainer(device: torch.device) -> Trainer:
    """Captured steps on a GPU, eager ones on a CPU."""
    return CudaGraphTrainer() if device.type == "cuda" else EagerTrainer()
