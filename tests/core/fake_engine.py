"""A method of a few numbers and engines without models: they show what the server sends, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir.core.actions import Action, Exchange, Round, Script, Step, received_by
from fedchoir.core.exchange import DeferredReport, Reply
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.interfaces import ReadState
from fedchoir.core.metrics import METRICS
from fedchoir.core.scores import Detail, Evaluation, TestScore, Validation
from fedchoir.core.settings import Settings
from fedchoir.payload import Payload, sends

TESTS = ("d0", "d1", "d2")
DETAILS: tuple[Detail, ...] = ("accuracy", "metrics", "intervals")


class TinyMethod:
    """Clients share a number, move towards the mean, share again and add the round's number."""

    name = "tiny"
    module_shapes: dict[str, Tensor] = {}

    def __init__(self, rounds: int = 3, clients: int = 3, **settings: Any) -> None:
        infos = tuple(ClientInfo(f"c{k}", "mlp", 48, 10, f"d{k}") for k in range(clients))
        self.spec = FederationSpec(("a", "b"), infos, rounds=rounds, seed=0)
        self.params = Settings(**settings)
        self.server: dict[str, Tensor] = {"total": torch.zeros(1)}

    def setup(self) -> Script:
        yield Step(self.prepare)

    def round(self, r: Round) -> Script:
        yield Step(self.store)
        first = yield Exchange(self.share)
        yield Step(self.update, received=first)
        second = yield Exchange(self.share_again)
        self.server["total"] = self.server["total"] + second["x"]
        yield Step(self.train)

    def private_epochs(self, client: int, rounds: int) -> int:
        return rounds * self.params.epochs_of(client)

    def global_weights(self) -> dict[str, Tensor] | None:
        return {"total": self.server["total"]}

    def model_shapes(self, client: int) -> dict[str, Tensor]:
        return {"weight": torch.zeros(2)}

    def server_metrics(self) -> dict[str, Any]:
        return {"total": float(self.server["total"])}

    @classmethod
    def payload_noise(cls, params: Any) -> float:
        return 0.0

    @classmethod
    def requires_individual_payloads(cls, params: Any) -> str:
        return ""

    def models_prevent_sums(self) -> str:
        return ""

    def prepare(self, client: FakeClient) -> None:
        client.value = 1.0 + client.index

    def store(self, client: FakeClient) -> None:
        client.stored = client.value

    @sends(x="1")
    def share(self, client: FakeClient) -> Payload:
        return Payload(x=torch.tensor([client.value]))

    def update(self, client: FakeClient, received: Payload) -> None:
        client.value = (client.stored + float(received["x"])) / 2
        client.losses["public_loss"] = abs(client.value - client.stored)

    @sends(x="1")
    def share_again(self, client: FakeClient) -> Payload:
        return Payload(x=torch.tensor([client.value]))

    def train(self, client: FakeClient) -> None:
        client.value += client.round
        client.losses["local_loss"] = 10.0 * client.round + client.index


class FakeClient:
    def __init__(self, index: int) -> None:
        self.index, self.round = index, 0
        self.value = self.stored = 0.0
        self.losses: dict[str, float] = {}

    def run(self, actions: Sequence[Action], round_index: int) -> list[Payload]:
        self.round = round_index
        result = None
        for action in actions:
            received = received_by(action.received, self.index, 0)
            result = action.function(self, *([received] if received else []))
        return [result] if result is not None else []

    def report(self) -> dict[str, float]:
        losses, self.losses = self.losses, {}
        return losses


class FakeEngine:
    """Runs actions at fake clients and records every message as (round, clients, names of the functions)."""

    def __init__(self, clients: int = 3) -> None:
        self.clients = [FakeClient(k) for k in range(clients)]
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self.messages: list[tuple[int, tuple[int, ...], list[str]]] = []
        self.evaluated: list[dict[str, Tensor] | None] = []
        self.details: list[Detail] = []  # of the evaluations
        self.validation: dict[tuple[int, int], Validation] = {}  # by round and client
        self.silent: set[int] = set()  # clients that never reply
        self.errors: dict[int, str] = {}
        self.folder: Path | None = None  # of the last checkpoint

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        self.messages.append((round_index, tuple(clients), [a.function.__name__ for a in actions]))
        for k in reversed(clients):  # the server sorts replies
            if k in self.silent:
                continue
            if k in self.errors:
                yield Reply(k, error=self.errors[k])
            else:
                payloads = self.clients[k].run(actions, round_index)
                yield Reply(k, payloads, self.clients[k].report())

    def evaluation(self, k: int, index: int, detail: Detail) -> Evaluation:
        """Scores on three tests, and the validation that the test has set for the round."""
        values = [self.clients[k].value + number for number in range(3)]
        scores = (TestScore(v, {} if detail == "accuracy" else dict.fromkeys(METRICS, v)) for v in values)
        return Evaluation(tuple(scores), self.validation.get((index, k)))

    def evaluate(self, weights: dict[str, Tensor] | None, round_index: int, detail: Detail) -> list[Evaluation]:
        self.evaluated.append(weights)
        self.details.append(detail)
        return [self.evaluation(k, round_index, detail) for k in range(len(self.clients))]

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        for client in self.clients:
            yield f"client-{client.index}", {"value": torch.tensor(client.value, dtype=torch.float64)}

    def saved(self, folder: Path) -> None:
        self.folder = folder

    def load(self, read: ReadState) -> None:
        for client in self.clients:
            client.value = float(read(f"client-{client.index}")["value"])


class FakeDeferringEngine(FakeEngine):
    """Queues steps and evaluations for each client; their results come with its next reply."""

    def __init__(self, clients: int = 3) -> None:
        super().__init__(clients)
        self.queues: dict[int, list[tuple[int, Sequence[Action] | Detail]]] = {k: [] for k in range(clients)}

    def defer(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> None:
        for k in clients:
            self.queues[k].append((round_index, actions))

    def defer_evaluation(self, round_index: int, weights: dict[str, Tensor] | None, detail: Detail) -> None:
        self.evaluated.append(weights)
        self.details.append(detail)
        for queue in self.queues.values():
            queue.append((round_index, detail))

    def flush(self, round_index: int) -> Iterator[Reply]:
        yield from self.execute(range(len(self.clients)), [], round_index)

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        queued = self.queues[clients[0]]
        names = [a.function.__name__ for _, waiting in queued if not isinstance(waiting, str) for a in waiting]
        self.messages.append((round_index, tuple(clients), [*names, *(a.function.__name__ for a in actions)]))
        for k in reversed(clients):
            if k in self.silent:
                continue
            if k in self.errors:
                yield Reply(k, error=self.errors[k])
                continue
            deferred = self._run_queue(k)
            payloads = self.clients[k].run(actions, round_index)
            yield Reply(k, payloads, self.clients[k].report(), deferred=deferred)

    def _run_queue(self, k: int) -> dict[int, DeferredReport]:
        client, reports, found = self.clients[k], {}, {}
        for index, work in self.queues[k]:
            if isinstance(work, str):
                found[index] = self.evaluation(k, index, work)
            else:
                client.run(work, index)
                reports[index] = {**reports.get(index, {}), **client.report()}
        self.queues[k].clear()
        return {i: DeferredReport(reports.get(i, {}), found.get(i)) for i in {*reports, *found}}

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        yield from super().states()
        queued = [
            [k, index, DETAILS.index(w) if isinstance(w, str) else -1] for k, q in self.queues.items() for index, w in q
        ]
        yield "queues", {"queues": torch.tensor(queued)} if queued else {}

    def load(self, read: ReadState) -> None:
        super().load(read)
        for k, index, detail in read("queues").get("queues", torch.zeros(0, 3)).tolist():
            self.queues[k].append((index, [Step(TinyMethod().train)] if detail < 0 else DETAILS[detail]))
