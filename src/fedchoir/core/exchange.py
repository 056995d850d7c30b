"""One exchange on the server: it checks replies, enforces the quorum, aggregates, and counts bytes and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedchoir.core.actions import Action, Exchange, received_bytes
from fedchoir.core.aggregation import Aggregator
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.outliers import without_outliers
from fedchoir.core.scores import Evaluation
from fedchoir.core.sliced_mean import SlicedMean
from fedchoir.payload import MODEL, MODULE, Payload, PayloadError, check, declared_by
from fedchoir.utils.errors import QuorumError
from fedchoir.utils.text import printable

if TYPE_CHECKING:
    from fedchoir.core.interfaces import FederatedMethod

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class DeferredReport:
    """A client's losses of an earlier round and, if that round was evaluated, its scores."""

    report: Mapping[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class Reply:
    """A client's reply to one message: its payloads and losses, or an error."""

    client: int
    payloads: Sequence[Payload] = ()
    report: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    deferred: Mapping[int, DeferredReport] = field(default_factory=dict)  # by round, from an engine that defers steps
    keys: Mapping[str, Any] = field(default_factory=dict)  # messages of the secure aggregation protocol


@dataclass
class RoundStats:
    """Traffic, losses and failed replies of one round."""

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    left_out: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    reports: dict[str, dict[str, int]] = field(default_factory=dict)  # how many reports each loss is the mean of

    def add_message(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """One message to each client, with everything that its actions deliver."""
        self.messages += len(clients)
        self.add_downlink(actions, clients)

    def add_downlink(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """What the actions deliver, where another message carries it."""
        self.bytes_down += sum(received_bytes(action.received, k) for action in actions for k in clients)

    def add_bytes(self, *, up: int = 0, down: int = 0) -> None:
        """Bytes beside the payloads: keys and shares of secure aggregation."""
        self.bytes_up += up
        self.bytes_down += down

    def add_reply(self, reply: Reply, name: str) -> None:
        self.bytes_up += sum(payload.nbytes for payload in reply.payloads)
        self.add_report(name, reply.report)

    def add_report(self, name: str, report: Mapping[str, float]) -> None:
        """A client's losses since its last report; the round's loss is the mean over its reports."""
        losses, counts = self.losses.setdefault(name, {}), self.reports.setdefault(name, {})
        for phase, value in report.items():
            counts[phase] = counts.get(phase, 0) + 1
            losses[phase] = losses.get(phase, 0.0) + (value - losses.get(phase, 0.0)) / counts[phase]

    def leave_out(self, name: str, exchange: str, why: str) -> None:
        """Record a client whose reply is not used; the reason may quote what the client sent."""
        self.left_out.append({"client": name, "exchange": exchange, "why": printable(why)})

    def reasons(self, clients: int) -> str:
        """Why the last ``clients`` replies are not used, for an error message."""
        return "; ".join(f"{out['client']}: {out['why']}" for out in self.left_out[-clients:]) or "no reply in time"


def aggregate(
    exchange: Exchange,
    replies: Iterable[Reply],
    *,
    clients: Sequence[int],
    names: Sequence[str],
    quorum: float,
    stats: RoundStats,
    fault: Callable[[Reply], str],
    defence: Callable[[Aggregator], Aggregator] = lambda aggregator: aggregator,
) -> Any:
    """Check each reply (``fault`` returns why one is unusable) and aggregate the others in the order of the clients.

    In a plain mean, replies with numbers far larger than the others' are left out, too. Raises `QuorumError` when
    fewer than ``quorum`` of the clients (a share) sent a usable reply.
    """
    name, usable = exchange.function.__name__, 0

    def leave_out(reply: Reply, why: str) -> None:
        stats.leave_out(names[reply.client], name, why)

    def faultless() -> Iterator[Reply]:
        for reply in in_order(replies, clients):
            stats.add_reply(reply, names[reply.client])
            if why := reply.error or fault(reply):
                leave_out(reply, why)
            else:
                yield reply

    example = defence(exchange.aggregator())
    plain = isinstance(example, SlicedMean) or mean_weights(example) is not None
    aggregator: Aggregator | None = None  # made at the first usable reply: a site may have joined with it
    for reply in without_outliers(faultless(), leave_out) if plain else faultless():
        aggregator = aggregator or defence(exchange.aggregator())
        aggregator.add(reply.client, reply.payloads)
        usable += 1
    if aggregator is None or usable < max(1, quorum * len(clients)):
        raise QuorumError(
            f"only {usable} of {len(clients)} clients sent a usable payload for {name}, and quorum is {quorum:.0%} "
            f"({stats.reasons(len(clients))})"
        )
    result = aggregator.result()
    return result if exchange.batches else result[0]


def state_shapes(
    method: FederatedMethod, function: Callable[..., Any], client: int
) -> tuple[State | None, State | None]:
    """The state dicts of a client's model and auxiliary modules, where the function sends some of them."""
    declared = declared_by(function).values()
    model = method.model_shapes(client) if MODEL in declared else None
    return model, method.module_shapes if MODULE in declared else None


def find_fault(
    reply: Reply,
    exchange: Exchange,
    dims: Mapping[str, int],
    model: State | None,
    modules: State | None = None,
) -> str:
    """Why a reply cannot be used; empty where it can."""
    expected = len(exchange.batches) or 1
    if len(reply.payloads) != expected:
        return f"sent {len(reply.payloads)} payloads where {expected} were expected"
    declared = declared_by(exchange.function)
    try:
        for number, payload in enumerate(reply.payloads):
            batch_dims = exchange.batches[number].dims if exchange.batches else {}
            check(payload, declared, {**dims, **exchange.dims, **batch_dims}, model, modules=modules)
            if exchange.fault is not None and (why := exchange.fault(payload)):
                return why
    except PayloadError as error:
        return str(error)
    return ""


def in_order(replies: Iterable[Reply], clients: Sequence[int]) -> Iterator[Reply]:
    """Replies in the order of the clients; only those that arrive early are held back."""
    waiting: dict[int, Reply] = {}
    order = iter(clients)
    turn = next(order, None)
    for reply in replies:
        waiting[reply.client] = reply
        while turn is not None and turn in waiting:
            yield waiting.pop(turn)
            turn = next(order, None)
    for client in sorted(waiting):  # a client before them never replied
        yield waiting[client]
