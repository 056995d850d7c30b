"""The one exchange: it owns bad replies, quorum, aggregation and the count of bytes and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedchoir.errors import QuorumError
from fedchoir.federation.aggregate import Combiner
from fedchoir.federation.payload import Payload, PayloadError, check, declared_by
from fedchoir.federation.phases import Action, Exchange, heard_bytes


@dataclass(frozen=True)
class News:
    """What a client has to tell about one round: its losses and, if it was asked to evaluate, its accuracies."""

    report: Mapping[str, float] = field(default_factory=dict)
    row: Sequence[float] | None = None


@dataclass(frozen=True)
class Reply:
    """What came back from one client: its parts and its report, or why there is none."""

    client: int
    parts: Sequence[Payload] = ()
    report: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    news: Mapping[int, News] = field(default_factory=dict)  # by round, from an engine that lets steps wait
    keys: Mapping[str, Any] = field(default_factory=dict)  # what it says about keys, where answers are hidden in a sum


@dataclass
class Ledger:
    """What a round cost and who was left out of it."""

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    left_out: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    reports: dict[str, dict[str, int]] = field(default_factory=dict)  # how many of them a loss is the mean of

    def sent(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """One message to each client, with all that its actions bring along."""
        self.messages += len(clients)
        self.carried(actions, clients)

    def carried(self, actions: Sequence[Action], clients: Sequence[int]) -> None:
        """What the actions bring along, where another message carries them."""
        self.bytes_down += sum(heard_bytes(action.heard, k) for action in actions for k in clients)

    def wrote(self, *, up: int = 0, down: int = 0) -> None:
        """Bytes beside the payloads: keys and shares of secure sums."""
        self.bytes_up += up
        self.bytes_down += down

    def came(self, reply: Reply, name: str) -> None:
        self.bytes_up += sum(part.nbytes for part in reply.parts)
        self.told(name, reply.report)

    def told(self, name: str, report: Mapping[str, float]) -> None:
        """A client's losses since its last report: the round's are the mean over its reports."""
        losses, counts = self.losses.setdefault(name, {}), self.reports.setdefault(name, {})
        for phase, value in report.items():
            counts[phase] = counts.get(phase, 0) + 1
            losses[phase] = losses.get(phase, 0.0) + (value - losses.get(phase, 0.0)) / counts[phase]


def combine(
    ask: Exchange,
    replies: Iterable[Reply],
    *,
    clients: Sequence[int],
    names: Sequence[str],
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None,
    parts: Mapping[str, Tensor] | None = None,
    quorum: float,
    ledger: Ledger,
    defence: Callable[[Combiner], Combiner] = lambda combiner: combiner,
) -> Any:
    """Check each reply, leave out the bad ones, and combine the rest in the order of the clients.

    Raises `QuorumError` when fewer than ``quorum`` of the clients (a share) gave a usable answer.
    """
    combiner: Combiner | None = None  # made when the first answer is there: a site may have joined with it
    declared = declared_by(ask.speak)
    heard = 0
    for reply in in_order(replies, clients):
        ledger.came(reply, names[reply.client])
        why = reply.error or fault(reply, ask, declared, dims, model, parts)
        if why:
            ledger.left_out.append({"client": names[reply.client], "exchange": ask.speak.__name__, "why": why})
            continue
        combiner = combiner or defence(ask.combine())
        combiner.add(reply.client, reply.parts)
        heard += 1
    if combiner is None or heard < max(1, quorum * len(clients)):
        reasons = "; ".join(f"{out['client']}: {out['why']}" for out in ledger.left_out[-len(clients) :])
        raise QuorumError(
            f"only {heard} of {len(clients)} clients gave a usable answer to {ask.speak.__name__}, and quorum is "
            f"{quorum:.0%} ({reasons or 'no answer in time'})"
        )
    combined = combiner.result()
    return combined if ask.batches else combined[0]


def fault(
    reply: Reply,
    ask: Exchange,
    declared: Mapping[str, str],
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None,
    parts: Mapping[str, Tensor] | None = None,
) -> str:
    """Why a reply cannot be used, or the empty string."""
    wanted = len(ask.batches) or 1
    if len(reply.parts) != wanted:
        return f"sent {len(reply.parts)} parts where {wanted} were asked for"
    try:
        for number, part in enumerate(reply.parts):
            local = ask.batches[number].dims if ask.batches else {}
            check(part, declared, {**dims, **ask.dims, **local}, model, parts=parts)
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
