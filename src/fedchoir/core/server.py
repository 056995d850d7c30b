"""The server's loop over rounds. It knows neither what a method does nor where the clients are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fedchoir.core import checkpoint
from fedchoir.core.actions import Action, Exchange, Script
from fedchoir.core.eligibility import Secure
from fedchoir.core.exchange import Reply, RoundStats, aggregate, find_fault, state_shapes
from fedchoir.core.interfaces import DeferringEngine, Engine, FederatedMethod
from fedchoir.core.metric_summary import event_fields
from fedchoir.core.metrics import METRICS
from fedchoir.core.private_training import affordable_rounds, spent
from fedchoir.core.result import Event
from fedchoir.core.robust import defended
from fedchoir.core.scores import Detail, Evaluation
from fedchoir.core.secure_setup import secure_exchange
from fedchoir.core.wire import Downlink
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.errors import UsageError


@dataclass
class PendingRound:
    """A round that has run but whose reports have not all arrived."""

    index: int
    clients: list[str]
    detail: Detail | None = None  # None: not evaluated
    evaluations: dict[int, Evaluation] = field(default_factory=dict)  # by client
    stats: RoundStats = field(default_factory=RoundStats)
    seconds: dict[str, float] = field(default_factory=dict)
    measures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> PendingRound:
        evaluations = {int(k): Evaluation.read(found) for k, found in facts["evaluations"].items()}
        return cls(**{**facts, "evaluations": evaluations, "stats": RoundStats(**facts["stats"])})


class Server:
    """Runs a method's rounds on an engine, with an event for each and checkpoints on request."""

    def __init__(
        self,
        method: FederatedMethod,
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
        self._base: Path | None = None  # the checkpoint that was written or loaded last
        self.next_round = 0
        self.notes: list[str] = []  # for the result
        self.stale = 0  # evaluated rounds since a client last improved on its validation share
        self._pending: list[PendingRound] = []
        self._downlink = Downlink(method.spec.compress)
        self._secure = secure_exchange(method, engine, secure, quorum, folder) if secure else None

    @property
    def settled(self) -> int:
        """How many rounds have their event."""
        return self._pending[0].index if self._pending else self.next_round

    @property
    def _samples(self) -> list[int]:
        return [info.train for info in self.method.spec.clients]

    @property
    def last_round(self) -> int:
        """The last round to run: the last of all, or the last that keeps within the privacy budget."""
        rounds, params = self.method.spec.rounds, self.method.params
        return (affordable_rounds(self.method, self._samples, rounds) if params.dp_noise else rounds) - 1

    def rounds(self) -> Iterator[list[Event]]:
        """Run the remaining rounds. After each, yield the events that are complete: its own, or on an engine that
        defers steps that of the round before."""
        if self.last_round < 0:
            params = self.method.params
            raise UsageError(
                f"dp_epsilon = {params.dp_epsilon} is not possible with dp_noise = {params.dp_noise:g}: the first "
                "round would exceed it; more noise, fewer local_epochs or a smaller local_batch cost less"
            )
        patience = self.method.params.early_stopping
        for index in range(self.next_round, self.last_round + 1):
            if 0 < patience <= self.stale:
                self.notes.append(
                    f"stopped early after round {index} of {self.method.spec.rounds}: no client improved the "
                    f"{METRICS[self.method.spec.metric].title} of its validation share in {patience} evaluated rounds"
                )
                return
            deferred = self._round(index)
            self.next_round = index + 1
            done = self._pending[:-1] if deferred else self._pending
            self._pending = self._pending[len(done) :]
            yield [self._event(pending) for pending in done]

    def save(self) -> None:
        """Write a checkpoint of the last round and wait for it."""
        assert self.folder is not None
        self.saved(checkpoint.save(self.folder, *self.snapshot()))

    def snapshot(self) -> checkpoint.Snapshot:
        """What a checkpoint of the last round holds. Its states must be read before the next round."""
        own = {"server": self.method.server}
        if self._downlink.chain is not None:
            own["downlink"] = dict(self._downlink.residuals)
        states = chain(self.engine.states(), own.items())
        pending = [asdict(pending) for pending in self._pending]
        facts = {"round": self.next_round - 1, "pending": pending, "stale": self.stale}
        return checkpoint.Snapshot(self.next_round - 1, states, facts, self._base)

    def saved(self, folder: Path) -> None:
        """The checkpoint of the last snapshot is complete."""
        self._base = folder
        self.engine.saved(folder)

    def resume(self) -> bool:
        """Continue after the last checkpoint, if there is one."""
        found = checkpoint.newest_intact(self.folder) if self.folder else None
        if found is None:
            return False
        saved, note = found
        self.notes = [note] if note else []
        self._base = saved
        self.engine.load(lambda name: checkpoint.load(saved, name))
        self.method.server = checkpoint.load(saved, "server")
        if self._downlink.chain is not None:
            self._downlink.residuals = checkpoint.load(saved, "downlink")
        facts = checkpoint.facts(saved)
        self.next_round, self.stale = int(facts["round"]) + 1, int(facts.get("stale", 0))
        self._pending = [PendingRound.read(pending) for pending in facts.get("pending", [])]
        return True

    def _round(self, index: int) -> bool:
        """Run one round. True if its last steps are deferred to the first exchange of the next one."""
        spec, params = self.method.spec, self.method.params
        start, before = time.perf_counter(), dict(self.engine.seconds)
        r = spec.round(index, params)
        pending = PendingRound(index, [spec.clients[k].name for k in r.clients], self._detail(index))
        self._pending.append(pending)
        exchanged = False
        if newcomers := spec.newcomers(index):
            exchanged = self._run(self._setup(index), newcomers, index, pending.stats)
        exchanged |= self._run(self.method.round(r), r.clients, index, pending.stats)
        pending.measures = self.method.server_metrics()
        everyone = len(r.clients) == len(spec.clients)
        more = index < self.last_round and not params.early_stopping
        deferred = self._close(pending, may_defer=exchanged and more and everyone)
        seconds = {key: value - before[key] for key, value in self.engine.seconds.items()}
        pending.seconds = {"total": time.perf_counter() - start, **seconds}
        return deferred

    def _setup(self, index: int) -> Script:
        """The setup of the clients whose first round this is. That of late ones leaves the server's state as it is."""
        if index == 0:
            return self.method.setup()
        method = copy(self.method)
        method.server = dict(method.server)
        return method.setup()

    def _close(self, pending: PendingRound, may_defer: bool) -> bool:
        """Evaluate the round, or defer that: only where every client takes part in every round."""
        engine, detail = self.engine, pending.detail
        weights = self.method.global_weights() if detail else None
        if not isinstance(engine, DeferringEngine):
            if detail:
                found = engine.evaluate(weights, pending.index, detail)
                pending.evaluations = {k: evaluation for k, evaluation in enumerate(found) if evaluation}
            return False
        if detail:
            engine.defer_evaluation(pending.index, weights, detail)
        if may_defer:
            return True
        for reply in self._received(engine.flush(pending.index)):
            pending.stats.messages += 1
            self._acknowledge(reply, pending.stats)
        return False

    def _run(self, script: Script, clients: tuple[int, ...], index: int, stats: RoundStats) -> bool:
        """Run a script to its end; steps wait for the next exchange and travel with it as one message.

        True if there was an exchange.
        """
        waiting: list[Action] = []
        aggregated: Any = None
        exchanged = False
        while True:
            try:
                action = script.send(aggregated)
            except StopIteration:
                break
            waiting.append(self._downlink.compressed(action))
            aggregated = None
            if isinstance(action, Exchange):
                aggregated = self._exchange(waiting, action, clients, index, stats)
                waiting, exchanged = [], True
        if waiting and isinstance(self.engine, DeferringEngine):
            stats.add_downlink(waiting, clients)
            self.engine.defer(clients, waiting, index)
        elif waiting:
            stats.add_message(waiting, clients)
            for reply in self.engine.execute(clients, waiting, index):
                self._acknowledge(reply, stats)
        return exchanged

    def _exchange(
        self, actions: list[Action], exchange: Exchange, clients: tuple[int, ...], index: int, stats: RoundStats
    ) -> Any:
        spec, params = self.method.spec, self.method.params
        stats.add_message(actions, clients)

        def fault(reply: Reply) -> str:
            return find_fault(reply, exchange, spec.dims, *state_shapes(self.method, exchange.function, reply.client))

        if self._secure is not None:
            return self._secure.exchange(exchange, actions, clients, index, stats, fault, self._received)
        return aggregate(
            exchange,
            self._received(self.engine.execute(clients, actions, index)),
            clients=clients,
            names=spec.names,
            quorum=self.quorum,
            stats=stats,
            fault=fault,
            defence=lambda aggregator: defended(aggregator, params.robust, params.robust_share),
        )

    def _received(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Pass replies on; add the deferred reports that they carry to the rounds they belong to."""
        for reply in replies:
            name = self.method.spec.clients[reply.client].name
            for pending in self._pending:
                report = reply.deferred.get(pending.index)
                if report is not None:
                    pending.stats.add_report(name, report.report)
                if report is not None and report.evaluation is not None:
                    pending.evaluations[reply.client] = report.evaluation
            yield reply

    def _acknowledge(self, reply: Reply, stats: RoundStats) -> None:
        name = self.method.spec.clients[reply.client].name
        stats.add_reply(reply, name)
        if reply.error:
            stats.leave_out(name, "", reply.error)

    def _detail(self, index: int) -> Detail | None:
        """What a round computes; None if it is not evaluated. Every n-th round is evaluated, and always the last three.

        Tables show the mean of the last three evaluated rounds, so all metrics are computed there, and in every
        evaluated round if one of them is the headline or chooses the best round. Intervals only where the run may end.
        """
        params, left = self.method.params, self.last_round - index
        if (index + 1) % params.evaluate_every and left > 2:
            return None
        if left == 0 or 0 < params.early_stopping <= self.stale + 1:
            return "intervals"
        return "metrics" if left <= 2 or params.validation or self.method.spec.metric != "accuracy" else "accuracy"

    def _event(self, pending: PendingRound) -> Event:
        spec, stats = self.method.spec, pending.stats
        found = [pending.evaluations.get(k) for k in range(len(spec.clients))] if pending.detail else None
        self._count_stale(pending)
        return {
            "round": pending.index,
            "clients": pending.clients,
            **event_fields(found, spec, self.tests),
            "losses": stats.losses,
            "measures": pending.measures,
            **self._privacy(pending.index),
            "left_out": stats.left_out,
            "bytes_up": stats.bytes_up,
            "bytes_down": stats.bytes_down,
            "messages": stats.messages,
            "seconds": pending.seconds,
        }

    def _count_stale(self, pending: PendingRound) -> None:
        """Count the evaluated rounds in which no client improved on its validation share."""
        found = [e.validation for e in pending.evaluations.values() if e.validation and e.validation.score is not None]
        if found:
            self.stale = 0 if any(v.best_round == pending.index for v in found) else self.stale + 1

    def _privacy(self, index: int) -> dict[str, Any]:
        """Each client's ε so far, at δ."""
        params = self.method.params
        release = self.method.payload_noise(params)
        if not params.dp_noise and not release:
            return {}
        names = [info.name for info in self.method.spec.clients]
        if release:
            costs = [epsilon(release, 1.0, 1, params.dp_delta)] * len(names)
        else:
            costs = spent(self.method, self._samples, index + 1)
        return {"privacy": {"delta": params.dp_delta, "epsilon": dict(zip(names, costs, strict=True))}}
