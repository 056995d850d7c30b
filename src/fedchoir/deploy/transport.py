"""Letters over Flower's grid: who is there, sending, and a pull loop with a deadline of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fedchoir.core.federation_spec import ClientInfo
from fedchoir.deploy.records import ACT, CARD, letter_from, to_records
from fedchoir.deploy.signing import Signer
from fedchoir.engines.messages import Envelope, MessageError

PULL = 0.2  # seconds between two looks for answers
GRACE = 30.0  # seconds by which the SuperLink keeps a message longer than we wait for it
CARD_DEADLINE = 120.0
AGAIN = 20.0  # seconds before a node that was refused is asked again: its operator may have put it right


class Registry(Protocol):
    @property
    def nodes(self) -> Mapping[int, str]:
        """Site names by node, as registered with their keys; empty in a rehearsal without keys."""


def any_card(card: Mapping[str, Any]) -> None:
    """Whoever comes may take part."""


@dataclass
class GridTransport:
    """Carries letters to the nodes of sites. Cards that do not fit are refused when they come (``admit`` raises)."""

    grid: Grid
    registry: Registry
    names: tuple[str, ...]
    asked: Mapping[str, Any]  # what a card is asked for
    deadline: float
    limit: int
    sealer: Signer | None = None
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)  # node by site
    refused: dict[int, str] = field(default_factory=dict)
    _asked_at: dict[int, float] = field(default_factory=dict)
    admit: Callable[[Mapping[str, Any]], None] = any_card
    before: Callable[[], None] = lambda: None  # called before letters go out

    # -- who is there ----------------------------------------------------------------------------------------------

    def call_roll(self) -> list[str]:
        """Look who is connected; ask nodes that are new for their cards. Returns the sites that are there."""
        online = set(self.grid.get_node_ids())
        self.where = {name: node for name, node in self.where.items() if node in online}
        known = set(self.where.values()) | {n for n, at in self._asked_at.items() if time.monotonic() < at + AGAIN}
        fresh = [n for n in online if n not in known and (not self.registry.nodes or n in self.registry.nodes)]
        letters = {node: Envelope(dict(self.asked)) for node in fresh}
        for node, answer in self._exchange(letters, CARD, min(CARD_DEADLINE, self.deadline)):
            self._asked_at[node] = time.monotonic()
            self._take(node, answer)
        return [name for name in self.names if name in self.where]

    def _take(self, node: int, answer: Envelope | str) -> None:
        if isinstance(answer, str):
            self.refused[node] = f"{self.registry.nodes.get(node, f'node {node}')}: {answer}"
            return
        card = answer.header
        name = str(card.get("name"))
        registered = self.registry.nodes.get(node, name)
        try:
            if name != registered or name not in self.names:
                raise MessageError(f"calls itself {name!r}, but its key is that of {registered!r}")
            self.admit(card)
        except MessageError as error:
            self.refused[node] = f"{registered}: {error}"
            return
        self.cards[name] = card
        self.where[name] = node
        self.refused.pop(node, None)

    def arrivals(self, cards: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        """The cards with those filled in that came late. Looks only if someone is missing."""
        if all(name in self.where for name in self.names):
            return cards
        self.call_roll()
        return tuple(card_of(self.cards[card.name]) if card.name in self.cards else card for card in cards)

    # -- letters ---------------------------------------------------------------------------------------------------

    def deliver(
        self, letters: Mapping[int, Envelope], within: float = math.inf
    ) -> Iterator[tuple[int, Envelope | str]]:
        self.before()
        online = set(self.grid.get_node_ids())
        nodes = {k: self.where.get(self.names[k]) for k in letters}
        there = {k: node for k, node in nodes.items() if node in online and node is not None}
        for k in letters:
            if k not in there:
                self.where.pop(self.names[k], None)
                yield k, "not connected"
        clients = {node: k for k, node in there.items()}
        sent = {there[k]: letters[k] for k in there}
        for node, answer in self._exchange(sent, ACT, min(self.deadline, within)):
            yield clients[node], answer

    def _exchange(
        self, letters: Mapping[int, Envelope], kind: str, deadline: float
    ) -> Iterator[tuple[int, Envelope | str]]:
        """Push one message a node, pull until all are answered or time is up."""
        waiting: dict[str, int] = {}
        for node, letter in letters.items():
            message = self._message(node, letter, kind, deadline)
            (number,) = self.grid.push_messages([message])
            if number is None:
                yield node, "the SuperLink did not take the message"
            else:
                waiting[number] = node
        end = time.monotonic() + deadline
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                yield node, self._read(reply)
            if waiting:
                time.sleep(PULL)
        for node in waiting.values():
            yield node, f"no answer within {deadline:g} s"

    def _message(self, node: int, letter: Envelope, kind: str, deadline: float) -> Message:
        text = letter.text()
        seal = {}
        if self.sealer is not None:
            signature = self.sealer.seal(self.grid.run.run_id, node, text, letter.blobs)
            seal = {"certificate": self.sealer.certificate, "signature": signature}
        records = to_records(text, letter.blobs, deadline=float(deadline), **seal)
        group = str(letter.header.get("serial", ""))
        return Message(records, node, kind, ttl=deadline + GRACE, group_id=group)

    def _read(self, reply: Message) -> Envelope | str:
        if reply.has_error():
            return reply.error.reason or f"Flower error {reply.error.code}"
        try:
            return letter_from(reply.content, self.limit)
        except MessageError as error:
            return str(error)


def card_of(card: Mapping[str, Any]) -> ClientInfo:
    return ClientInfo(
        name=card["name"], model=card["model"], train=int(card["train"]), test=int(card["test"]), domain="own"
    )
