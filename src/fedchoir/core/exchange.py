"""The one exchange: it owns bad replies, quorum, aggregation and the count of bytes and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedchoir.core.actions import Action, Exchange, received_bytes
from fedchoir.core.aggregation import Aggregator
from fedchoir.payload import Payload, PayloadError, check, declared_by
from fedchoir.utils.errors import QuorumError


@dataclass(frozen=True)
class DeferredReport:
    """What a client has to tell about one round: its losses and, if it was asked to evaluate, its accuracies."""

    report: Mapping[str, float] = field(default_factory=dict)
    row: Sequence[float] | None = None


@dataclass(frozen=True)
class Reply:
    """What came back from one client: its parts and its report, or why there is none."""

    client: int
    payloads: Sequence[Payload] = ()
    report: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    news: Mapping[int, DeferredReport] = field(default_factory=dict)  # by round, from an engine that lets steps wait
    keys: Mapping[str, Any] = field(default_factory=dict)  # what it says about keys, where answers are hidden in a sum


@dataclass
class RoundStats:
    """What a round cost and who was left out of it."""

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    left_out: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    reports: dict[str, dict[str, int]] = field(default_factory=dict)  # how many of them a loss is the mean of

    def add_message(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """One message to each client, with all that its actions bring along."""
        self.messages += len(clients)
        self.add_downlink(actions, clients)

    def add_downlink(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """What the actions bring along, where another message carries them."""
        self.bytes_down += sum(received_bytes(action.received, k) for action in actions for k in clients)

    def add_bytes(self, *, up: int = 0, down: int = 0) -> None:
        """Bytes beside the payloads: keys and shares of secure sums."""
        self.bytes_up += up
        self.bytes_down += down

    def add_reply(self, reply: Reply, name: str) -> None:
        self.bytes_up += sum(payload.nbytes for payload in reply.payloads)
        self.add_report(name, reply.report)

    def add_report(self, name: str, report: Mapping[str, float]) -> None:
        """A client's losses since its last report: the round's are the mean over its reports."""
        losses, counts = self.losses.setdefault(name, {}), self.reports.setdefault(name, {})
        for phase, value in report.items():
            counts[phase] = counts.get(phase, 0) + 1
            losses[phase] = losses.get(phase, 0.0) + (value - losses.get(phase, 0.0)) / counts[phase]


def aggregate(
    exchange: Exchange,
    replies: Iterable[Reply],
    *,
    clients: Sequence[int],
    names: Sequence[str],
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None,
    modules: Mapping[str, Tensor] | None = None,
    quorum: float,
    stats: RoundStats,
    defence: Callable[[Aggregator], Aggregator] = lambda aggregator: aggregator,
) -> Any:
    """Check each reply, leave out the bad ones, and aggregate the rest in the order of the clients.

    Raises `QuorumError` when fewer than ``quorum`` of the clients (a share) gave a usable answer.
    """
    aggregator: Aggregator | None = None  # made when the first answer is there: a site may have joined with it
    declared = declared_by(exchange.function)
    received = 0
    for reply in in_order(replies, clients):
        stats.add_reply(reply, names[reply.client])
        why = reply.error or fault(reply, exchange, declared, dims, model, modules)
        if why:
            stats.left_out.append({"client": names[reply.client], "exchange": exchange.function.__name__, "why": why})
            continue
        aggregator = aggregator or defence(exchange.aggregator())
        aggregator.add(reply.client, reply.payloads)
        received += 1
    if aggregator is None or received < max(1, quorum * len(clients)):
        reasons = "; ".join(f"{out['client']}: {out['why']}" for out in stats.left_out[-len(clients) :])
        raise QuorumError(
            f"only {received} of {len(clients)} clients sent a usable payload for {exchange.function.__name__}, and "
            f"quorum is {quorum:.0%} ({reasons or 'no reply in time'})"
        )
    combined = aggregator.result()
    return combined if exchange.batches else combined[0]


def fault(
    reply: Reply,
    exchange: Exchange,
    declared: Mapping[str, str],
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None,
    modules: Mapping[str, Tensor] | None = None,
) -> str:
    """Why a reply cannot be used, or the empty string."""
    wanted = len(exchange.batches) or 1
    if len(reply.payloads) != wanted:
        return f"sent {len(reply.payloads)} payloads where {wanted} were expected"
    try:
        for number, payload in enumerate(reply.payloads):
            local = exchange.batches[number].dims if exchange.batches else {}
            check(payload, declared, {**dims, **exchange.dims, **local}, model, modules=modules)
    except PayloadError as error:
        return str(error)
    return ""


def in_order(replies: Iterable[Reply], clients: Sequence[int]) -> Iterator[Reply]:
    """Replies in the order of the clients, holding back only those that arrived before their turn."""
    waiting: dict[int, Reply] = {}
    turns = iter(clients)
    turn = next(turns, None)
    for reply in replies:
        waiting[reply.client] = reply
        while turn is not None and turn in waiting:
            yield waiting.pop(turn)
            turn = next(turns, None)
    for client in sorted(waiting):  # someone before them never answered
        yield waiting[client]
