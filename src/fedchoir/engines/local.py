"""The local engine: all clients in one process, one after the other, on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedchoir.data.images import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenarios import ClientData, Scenario
from fedchoir.engines.replay import ReplayTrainer
from fedchoir.federation.client import Client
from fedchoir.federation.exchange import Reply
from fedchoir.federation.perform import perform
from fedchoir.federation.phases import Action
from fedchoir.federation.public import PublicView
from fedchoir.federation.robust import flipped
from fedchoir.federation.training import EagerTrainer, Trainer
from fedchoir.methods.method import Method
from fedchoir.models import build
from fedchoir.privacy.dp import PrivateTrainer, without_batchnorm
from fedchoir.rng import seeded

if TYPE_CHECKING:
    from fedchoir.privacy.desk import Desk

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
        trainer: Trainer | None = None,
    ) -> None:
        self.method = method
        self.device = device
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._progress = progress
        self._tests = [test.to(device) for test in scenario.tests.values()]
        self._own = [scenario.own_tests[data.name].to(device) for data in scenario.clients if scenario.own_tests]
        task, params = method.task, method.params
        view = None
        if public is not None:
            view = PublicView(public, seed=task.seed, kind=params.public_augment, device=device)
        self.clients = [
            new_client(method, index, data, view, device=device, precision=precision)
            for index, data in enumerate(scenario.clients)
        ]
        self._desks: dict[int, Desk] = {}  # where answers are hidden in sums
        shared = trainer or fast_trainer(device)
        for client in self.clients:
            if not method.params.dp_noise:  # private steps are run in a way of their own
                client.trainer = shared

    def ask(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        veils: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]:
        """Let each client do all the actions; the last one's answer, if it is an exchange, comes back. Clients with a
        veil hide it in a sum."""
        for k in clients if veils is None else veils:
            client = self.clients[k]
            client.begin(round_index)
            parts = []
            for action in actions:
                self._progress(client.name, action.function.__name__)
                with self._timed("public" if action.batches else "local"):
                    parts = perform(client, action)
            reply = Reply(k, parts, client.report())
            yield reply if veils is None else self._hidden(reply, veils[k])

    def confer(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        for k, request in requests.items():
            yield Reply(k, keys=self._desk(k).confer(request))

    def _hidden(self, reply: Reply, veil: Mapping[str, Any]) -> Reply:
        try:
            parts, keys = self._desk(reply.client).hide(reply.parts, veil)
        except ValueError as error:  # numbers that are not finite cannot be summed
            return replace(reply, parts=(), error=str(error))
        return replace(reply, parts=parts, keys=keys)

    def _desk(self, k: int) -> Desk:
        from fedchoir.privacy.desk import Desk

        return self._desks.setdefault(k, Desk(k, {}))

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """Accuracy in percent: one row a client, one column a test set, and one more for the client's own share of
        the tests where there is one. One global model is scored only once, unless the score depends on the client's
        own data."""
        with self._timed("evaluate"):
            if weights is None:
                return [self._row(client, self._tests_of(client)) for client in self.clients]
            if self.method.personal_score:
                return [self._row_with(client, weights, self._tests_of(client)) for client in self.clients]
            row = self._row_with(self.clients[0], weights, [*self._tests, *self._own])
            shared, own = row[: len(self._tests)], row[len(self._tests) :]
            return [[*shared, *own[k : k + 1]] for k in range(len(self.clients))]

    def states(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for client in self.clients:
            yield f"client-{client.index:05d}", client.state()

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        for client in self.clients:
            client.load(read(f"client-{client.index:05d}"))

    def model_shapes(self) -> dict[str, Tensor]:
        """The state of the shared architecture, for checking weights that arrive."""
        return self.clients[0].model.state_dict()

    def _tests_of(self, client: Client) -> list[ImageSet]:
        return [*self._tests, *self._own[client.index : client.index + 1]]

    def _row(self, client: Client, tests: Sequence[ImageSet]) -> list[float]:
        self._progress(client.name, "evaluate")
        return self.method.row(client, tests)

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
    return ReplayTrainer() if device.type == "cuda" else EagerTrainer()


def new_client(
    method: Method, index: int, data: ClientData, view: PublicView | None, *, device: torch.device, precision: str
) -> Client:
    """A client as it starts: its model is drawn from the seed and its number, or the seed alone where all are alike."""
    task = method.task
    with seeded(task.seed, "model", "shared" if task.homogeneous else index):
        model = build(task.clients[index].model, len(task.classes), image_size=task.image_size)
        if method.params.dp_noise:
            without_batchnorm(model)
        parts = method.extra_modules(model)
    train, params = data.train, method.params
    hostile = params.attack != "none" and index >= len(task.clients) - params.attackers
    if hostile and params.attack == "label_flip":
        train = replace(train, labels=flipped(train.labels, len(task.classes)))
    client = Client(
        index,
        data.name,
        model,
        train,
        settings=method.params,
        seed=task.seed,
        rounds=task.rounds,
        public=view,
        parts=parts,
        device=device,
        precision=precision,
    )
    client.hostile = hostile
    if method.params.dp_noise:
        client.trainer = PrivateTrainer(client)
    return client
