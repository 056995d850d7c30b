"""The loop over rounds. It knows neither what a method does nor where the clients are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from fedchoir.core import checkpoint
from fedchoir.core.actions import Action, Exchange, Script
from fedchoir.core.exchange import Reply, RoundStats, aggregate, fault
from fedchoir.core.result import Event, split_rows
from fedchoir.core.robust import defended
from fedchoir.methods.base import Method
from fedchoir.payload import MODULE, declared_by
from fedchoir.privacy.dp import affordable, spent
from fedchoir.privacy.eligibility import Secure, check_secure
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.core.secure_exchange import SecureExchange


class Engine(Protocol):
    """Where the clients are. An engine knows no method."""

    seconds: dict[str, float]

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """Send each client its actions as one message; replies come as they arrive."""

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """One row a client, one column a test set; then one for the client's own share of the tests, if it has one."""

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """What a checkpoint must hold, by name; None for what the last one holds already."""

    def saved(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """A checkpoint, which ``read`` reads, holds what `states` gave last."""

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None: ...

    def model_shapes(self) -> dict[str, Tensor]: ...


@runtime_checkable
class DeferringEngine(Protocol):
    """An engine whose messages are dear: what ends a round waits and travels with the first exchange of the next.

    What comes of it arrives later, as `Reply.news` of its round.
    """

    def defer(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> None:
        """Actions that each client is to do before whatever it is asked next."""

    def defer_evaluation(self, round_index: int, weights: dict[str, Tensor] | None) -> None:
        """An evaluation that each client is to do after what it has been given so far."""

    def flush(self, round_index: int) -> Iterator[Reply]:
        """Send now what waits."""


@dataclass
class PendingRound:
    """A round that has been played, but of which not all has been heard yet."""

    index: int
    clients: list[str]
    evaluated: bool = False
    rows: dict[int, list[float]] = field(default_factory=dict)  # accuracies by client
    stats: RoundStats = field(default_factory=RoundStats)
    seconds: dict[str, float] = field(default_factory=dict)
    measures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> PendingRound:
        rows = {int(k): row for k, row in facts["rows"].items()}
        return cls(**{**facts, "rows": rows, "ledger": RoundStats(**facts["ledger"])})


class Server:
    """Plays a method's rounds on an engine, with a checkpoint and an event after each."""

    def __init__(
        self,
        method: Method,
        engine: Engine,
        tests: Sequence[str],
        *,
        quorum: float = 0.5,
        folder: Path | None = None,
        secure: Secure = False,
    ) -> None:
        self.method = method
        self.engine = engine
        self.tests = tuple(tests)
        self.quorum = quorum
        self.folder = folder
        self.next_round = 0
        self._pending: list[PendingRound] = []
        self._sums = secure_exchange(method, engine, secure, quorum) if secure else None

    @property
    def settled(self) -> int:
        """How many rounds have their event."""
        return self._pending[0].index if self._pending else self.next_round

    @property
    def last_round(self) -> int:
        """The last round to play: the last of all, or the last that keeps within a privacy budget."""
        task, params = self.method.task, self.method.params
        if not params.dp_noise:
            return task.rounds - 1
        return affordable(params, [card.train for card in task.clients], task.rounds) - 1

    def rounds(self) -> Iterator[list[Event]]:
        """Play the rounds that are left. After each come the events that are complete: its own, or on an engine that
        lets steps wait the one before."""
        if self.last_round < 0:
            params = self.method.params
            raise UsageError(
                f"dp_epsilon = {params.dp_epsilon} is not possible with dp_noise = {params.dp_noise:g}: the first "
                "round would exceed it; more noise, fewer local_epochs or a smaller local_batch cost less"
            )
        for index in range(self.next_round, self.last_round + 1):
            carried_over = self._round(index)
            self.next_round = index + 1
            done = self._pending[:-1] if carried_over else self._pending
            self._pending = self._pending[len(done) :]
            yield [self._event(pending_round) for pending_round in done]

    def save(self) -> None:
        """A checkpoint of the last round."""
        assert self.folder is not None
        states = chain(self.engine.states(), [("server", self.method.server)])
        facts = {"round": self.next_round - 1, "drafts": [asdict(pending_round) for pending_round in self._pending]}
        saved = checkpoint.save(self.folder, self.next_round - 1, states, facts)
        self.engine.saved(lambda name: checkpoint.load(saved, name))

    def resume(self) -> bool:
        """Go on after the last checkpoint, if there is one."""
        saved = checkpoint.latest(self.folder) if self.folder else None
        if saved is None:
            return False
        self.engine.load(lambda name: checkpoint.load(saved, name))
        self.method.server = checkpoint.load(saved, "server")
        facts = checkpoint.facts(saved)
        self.next_round = int(facts["round"]) + 1
        self._pending = [PendingRound.read(pending_round) for pending_round in facts.get("drafts", [])]
        return True

    def _round(self, index: int) -> bool:
        """Play one round. True if some of it waits for the first exchange of the next one."""
        task, params = self.method.task, self.method.params
        start, before = time.perf_counter(), dict(self.engine.seconds)
        r = task.round(index, params)
        pending_round = PendingRound(index, [task.clients[k].name for k in r.clients], self._evaluates(index))
        self._pending.append(pending_round)
        spoke = False
        if index == 0:
            spoke = self._play(self.method.setup(), tuple(range(len(task.clients))), index, pending_round.stats)
        spoke |= self._play(self.method.round(r), r.clients, index, pending_round.stats)
        pending_round.measures = self.method.server_metrics()
        carried_over = self._close(
            pending_round, spoke and index < self.last_round and len(r.clients) == len(task.clients)
        )
        seconds = {key: value - before[key] for key, value in self.engine.seconds.items()}
        pending_round.seconds = {"total": time.perf_counter() - start, **seconds}
        return carried_over

    def _close(self, pending_round: PendingRound, may_wait: bool) -> bool:
        """Evaluate, or leave that for later: only where all clients are asked in every round, or some would lag."""
        weights = self.method.global_weights() if pending_round.evaluated else None
        engine = self.engine
        if not isinstance(engine, DeferringEngine):
            if pending_round.evaluated:
                pending_round.rows = dict(enumerate(engine.evaluate(weights)))
            return False
        if pending_round.evaluated:
            engine.defer_evaluation(pending_round.index, weights)
        if may_wait:
            return True
        for reply in self._received(engine.flush(pending_round.index)):
            pending_round.stats.messages += 1
            self._acknowledge(reply, pending_round.stats)
        return False

    def _play(self, script: Script, clients: tuple[int, ...], index: int, stats: RoundStats) -> bool:
        """Run a script to its end: steps wait for the next exchange and travel with it as one message.

        True if there was an exchange.
        """
        waiting: list[Action] = []
        answer: Any = None
        spoke = False
        while True:
            try:
                action = script.send(answer)
            except StopIteration:
                break
            waiting.append(action)
            answer = None
            if isinstance(action, Exchange):
                answer = self._exchange(waiting, action, clients, index, stats)
                waiting, spoke = [], True
        if waiting and isinstance(self.engine, DeferringEngine):
            stats.add_downlink(waiting, clients)
            self.engine.defer(clients, waiting, index)
        elif waiting:
            stats.add_message(waiting, clients)
            for reply in self.engine.execute(clients, waiting, index):
                self._acknowledge(reply, stats)
        return spoke

    def _exchange(
        self, actions: list[Action], exchange: Exchange, clients: tuple[int, ...], index: int, stats: RoundStats
    ) -> Any:
        task, params = self.method.task, self.method.params
        stats.add_message(actions, clients)
        model = self.engine.model_shapes() if task.homogeneous else None
        modules = self.method.module_shapes if MODULE in declared_by(exchange.function).values() else None
        if self._sums is not None:
            declared = declared_by(exchange.function)
            return self._sums.exchange(
                exchange, actions, clients, index, stats, received=self._received,
                check=lambda reply: fault(reply, exchange, declared, task.dims, model, modules),
            )  # fmt: skip
        return aggregate(
            exchange,
            self._received(self.engine.execute(clients, actions, index)),
            clients=clients,
            names=[card.name for card in task.clients],
            dims=task.dims,
            model=model,
            modules=modules,
            quorum=self.quorum,
            stats=stats,
            defence=lambda aggregator: defended(aggregator, params.robust, params.robust_share),
        )

    def _received(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Pass replies on, and put the news they bring into the drafts of their rounds."""
        for reply in replies:
            name = self.method.task.clients[reply.client].name
            for pending_round in self._pending:
                news = reply.news.get(pending_round.index)
                if news is not None:
                    pending_round.stats.add_report(name, news.report)
                if news is not None and news.row is not None:
                    pending_round.rows[reply.client] = list(news.row)
            yield reply

    def _acknowledge(self, reply: Reply, stats: RoundStats) -> None:
        name = self.method.task.clients[reply.client].name
        stats.add_reply(reply, name)
        if reply.error:
            stats.left_out.append({"client": name, "exchange": "", "why": reply.error})

    def _evaluates(self, index: int) -> bool:
        """Whether the settings ask for the accuracies of this round; those of the last three always."""
        return (index + 1) % self.method.params.evaluate_every == 0 or index >= self.last_round - 2

    def _event(self, pending_round: PendingRound) -> Event:
        everyone = range(len(self.method.task.clients))
        rows = [pending_round.rows.get(k) for k in everyone] if pending_round.evaluated else None
        accuracy = [row[: len(self.tests)] if row else row for row in rows] if rows else None
        return {
            "round": pending_round.index,
            "clients": pending_round.clients,
            "accuracy": accuracy,
            **self._own(rows),
            **self._averages(accuracy),
            "losses": pending_round.stats.losses,
            "measures": pending_round.measures,
            **self._privacy(pending_round.index),
            "left_out": pending_round.stats.left_out,
            "bytes_up": pending_round.stats.bytes_up,
            "bytes_down": pending_round.stats.bytes_down,
            "messages": pending_round.stats.messages,
            "seconds": pending_round.seconds,
        }

    def _privacy(self, index: int) -> dict[str, Any]:
        """What each client's images have been exposed to so far, at most: ε for δ."""
        task, params = self.method.task, self.method.params
        if not params.dp_noise:
            return {}
        costs = spent(params, [card.train for card in task.clients], index + 1)
        names = [card.name for card in task.clients]
        return {"privacy": {"delta": params.dp_delta, "epsilon": dict(zip(names, costs, strict=True))}}

    def _own(self, rows: list[list[float] | None] | None) -> dict[str, list[float | None]]:
        """Accuracies on the clients' own shares of the tests: the column after those of the tests, if there is one."""
        own = [row[len(self.tests)] if row and len(row) > len(self.tests) else None for row in rows or []]
        return {"own": own} if any(value is not None for value in own) else {}

    def _averages(self, accuracy: list[list[float] | None] | None) -> dict[str, float | None]:
        intra, inter = split_rows(accuracy, self.method.task, self.tests) if accuracy else ([], [])
        return {
            "intra_avg": sum(intra) / len(intra) if intra else None,
            "inter_avg": sum(inter) / len(inter) if inter else None,
        }


def secure_exchange(method: Method, engine: Engine, secure: Secure, quorum: float) -> SecureExchange:
    """Exchanges that show the server only means. (What they need from `cryptography` is an extra.)"""
    clients = method.task.clients
    check_secure(type(method), method.params, len(clients))
    try:
        from fedchoir.core.secure_exchange import SecureEngine, SecureExchange
    except ModuleNotFoundError:
        raise UsageError("secure sums need the package cryptography: pip install 'fedchoir[privacy]'") from None
    names = [card.name for card in clients]
    if not isinstance(engine, SecureEngine):
        raise UsageError("secure sums are rehearsed in one process: leave out --devices, or leave out --secure")
    return SecureExchange(engine, names, method.name, strict=secure == "strict", quorum=quorum)
