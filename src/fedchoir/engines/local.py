"""The local engine: all clients in one process, one after the other, on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedchoir.data.public import PublicSet
from fedchoir.data.scenarios import ClientData, Scenario
from fedchoir.federation.client import Client
from fedchoir.federation.exchange import Reply
from fedchoir.federation.perform import perform
from fedchoir.federation.phases import Action
from fedchoir.federation.public import PublicView
from fedchoir.methods.method import Method
from fedchoir.models import build
from fedchoir.rng import seeded

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
        progress: Progress = lambda client, phase: None,
    ) -> None:
        self.method = method
        self.device = device
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._progress = progress
        self._tests = {name: test.to(device) for name, test in scenario.tests.items()}
        task, params = method.task, method.params
        view = None
        if public is not None:
            view = PublicView(public, seed=task.seed, kind=params.public_augment, device=device)
        self.clients = [
            new_client(method, index, data, view, device=device, precision=precision)
            for index, data in enumerate(scenario.clients)
        ]

    def ask(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """Let each client do all the actions; the last one's answer, if it is an exchange, comes back."""
        for k in clients:
            client = self.clients[k]
            client.begin(round_index)
            parts = []
            for action in actions:
                self._progress(client.name, action.function.__name__)
                with self._timed("public" if action.batches else "local"):
                    parts = perform(client, action)
            yield Reply(k, parts, client.report())

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """Accuracy in percent: one row a client, one column a test set. One global model is scored only once, unless
        the score depends on the client's own data."""
        with self._timed("evaluate"):
            if weights is None:
                return [self._row(client) for client in self.clients]
            if self.method.personal_score:
                return [self._row_with(client, weights) for client in self.clients]
            row = self._row_with(self.clients[0], weights)
            return [list(row) for _ in self.clients]

    def states(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for client in self.clients:
            yield f"client-{client.index:05d}", client.state()

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        for client in self.clients:
            client.load(read(f"client-{client.index:05d}"))

    def model_shapes(self) -> dict[str, Tensor]:
        """The state of the shared architecture, for checking weights that arrive."""
        return self.clients[0].model.state_dict()

    def _row(self, client: Client) -> list[float]:
        self._progress(client.name, "evaluate")
        return self.method.row(client, self._tests.values())

    def _row_with(self, client: Client, weights: dict[str, Tensor]) -> list[float]:
        own = client.snapshot()
        client.model.load_state_dict(weights)
        row = self._row(client)
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


def new_client(
    method: Method, index: int, data: ClientData, view: PublicView | None, *, device: torch.device, precision: str
) -> Client:
    """A client as it starts: its model is drawn from the seed and its number, or the seed alone where all are alike."""
    task = method.task
    with seeded(task.seed, "model", "shared" if task.homogeneous else index):
        model = build(task.clients[index].model, len(task.classes), image_size=task.image_size)
        parts = method.extra_modules(model)
    return Client(
        index,
        data.name,
        model,
        data.train,
        settings=method.params,
        seed=task.seed,
        rounds=task.rounds,
        public=view,
        parts=parts,
        device=device,
        precision=precision,
    )
