"""The loop over rounds. It knows neither what a method does nor where the clients are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedchoir.federation import checkpoint
from fedchoir.federation.exchange import Ledger, Reply, combine
from fedchoir.federation.phases import Action, Exchange, Script
from fedchoir.federation.result import Event, split_rows
from fedchoir.methods.method import Method


class Engine(Protocol):
    """Where the clients are. An engine knows no method."""

    seconds: dict[str, float]

    def ask(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """Send each client its actions as one message; replies come as they arrive."""

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]: ...

    def states(self) -> Iterator[tuple[str, dict[str, Tensor]]]: ...

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None: ...

    def model_shapes(self) -> dict[str, Tensor]: ...


class Federation:
    """Plays a method's rounds on an engine, with a checkpoint and an event after each."""

    def __init__(
        self, method: Method, engine: Engine, tests: Sequence[str], *, quorum: float = 0.5, folder: Path | None = None
    ) -> None:
        self.method = method
        self.engine = engine
        self.tests = tuple(tests)
        self.quorum = quorum
        self.folder = folder
        self.next_round = 0

    def rounds(self) -> Iterator[Event]:
        """Play the rounds that are left, one event each."""
        task = self.method.task
        for index in range(self.next_round, task.rounds):
            event = self._round(index)
            self.next_round = index + 1
            yield event

    def save(self) -> None:
        """A checkpoint of the last round."""
        assert self.folder is not None
        states = [*self.engine.states(), ("server", self.method.server)]
        checkpoint.save(self.folder, self.next_round - 1, states, {"round": self.next_round - 1})

    def resume(self) -> bool:
        """Go on after the last checkpoint, if there is one."""
        saved = checkpoint.latest(self.folder) if self.folder else None
        if saved is None:
            return False
        self.engine.load(lambda name: checkpoint.load(saved, name))
        self.method.server = checkpoint.load(saved, "server")
        self.next_round = int(checkpoint.facts(saved)["round"]) + 1
        return True

    def _round(self, index: int) -> Event:
        task, params = self.method.task, self.method.params
        ledger = Ledger()
        start, before = time.perf_counter(), dict(self.engine.seconds)
        r = task.round(index, params)
        if index == 0:
            self._play(self.method.opening(), tuple(range(len(task.clients))), index, ledger)
        self._play(self.method.round(r), r.clients, index, ledger)
        accuracy = self._evaluate(index)
        seconds = {key: value - before[key] for key, value in self.engine.seconds.items()}
        return {
            "round": index,
            "clients": [task.clients[k].name for k in r.clients],
            "accuracy": accuracy,
            **self._averages(accuracy),
            "losses": ledger.losses,
            "left_out": ledger.left_out,
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            "messages": ledger.messages,
            "seconds": {"total": time.perf_counter() - start, **seconds},
        }

    def _play(self, script: Script, clients: tuple[int, ...], index: int, ledger: Ledger) -> None:
        """Run a script to its end: steps wait for the next exchange and travel with it as one message."""
        waiting: list[Action] = []
        answer: Any = None
        while True:
            try:
                action = script.send(answer)
            except StopIteration:
                break
            waiting.append(action)
            answer = None
            if isinstance(action, Exchange):
                answer = self._exchange(waiting, action, clients, index, ledger)
                waiting = []
        if waiting:
            ledger.sent(waiting, clients)
            for reply in self.engine.ask(clients, waiting, index):
                self._acknowledge(reply, ledger)

    def _exchange(
        self, actions: list[Action], ask: Exchange, clients: tuple[int, ...], index: int, ledger: Ledger
    ) -> Any:
        task = self.method.task
        ledger.sent(actions, clients)
        return combine(
            ask,
            self.engine.ask(clients, actions, index),
            clients=clients,
            names=[card.name for card in task.clients],
            dims=task.dims,
            model=self.engine.model_shapes() if task.homogeneous else None,
            quorum=self.quorum,
            ledger=ledger,
        )

    def _acknowledge(self, reply: Reply, ledger: Ledger) -> None:
        name = self.method.task.clients[reply.client].name
        ledger.came(reply, name)
        if reply.error:
            ledger.left_out.append({"client": name, "exchange": "", "why": reply.error})

    def _evaluate(self, index: int) -> list[list[float]] | None:
        """The accuracy matrix of this round, where the settings ask for one; the last three rounds always."""
        rounds, every = self.method.task.rounds, self.method.params.evaluate_every
        if (index + 1) % every and index < rounds - 3:
            return None
        return self.engine.evaluate(self.method.global_weights())

    def _averages(self, accuracy: list[list[float]] | None) -> dict[str, float | None]:
        if accuracy is None:
            return {"intra_avg": None, "inter_avg": None}
        intra, inter = split_rows(accuracy, self.method.task, self.tests)
        return {"intra_avg": sum(intra) / len(intra), "inter_avg": sum(inter) / len(inter) if inter else None}
