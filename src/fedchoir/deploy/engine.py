"""The server's side: it packs what clients are to do into as few messages as possible and reads what comes back.

A client's state is always the one after its last *acknowledged* message. Who fails, hangs or is not there is left out
of the exchange; when it comes back, it first does the steps that it missed in this round and the last one (and in round
0, where a method may open).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.engines.messages import Envelope, MessageError, pack_action, pack_task, unpack_action, unpack_reply
from fedchoir.methods.base import Method
from fedchoir.models import build
from fedchoir.payload import Payload, state_payload
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded

KEYS = 60.0  # seconds for an answer about keys: it takes no work, so who is silent for so long is not there


class Transport(Protocol):
    """Carries letters to sites and brings their answers."""

    def arrivals(self, cards: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        """The cards of all sites, with those of sites that have just come."""

    def deliver(
        self, letters: Mapping[int, Envelope], within: float = math.inf
    ) -> Iterator[tuple[int, Envelope | str]]:
        """One answer for each letter, as they come: a letter, or why there is none (in so many seconds)."""


@dataclass(frozen=True)
class Work:
    """Something that a client is to do in a round: an action, or an evaluation (of the weights given, or its own)."""

    round: int
    action: Action | None = None
    weights: Payload | None = None


class FlowerEngine:
    """Runs a method's actions on clients that are elsewhere. It lets the end of a round wait for the next message."""

    def __init__(self, method: Method, post: Transport, *, run: str, public: Mapping[str, Any] | None = None) -> None:
        self.method = method
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._post = post
        self._run = run
        self._public = public
        everyone = range(len(method.task.clients))
        self._waiting: dict[int, list[Work]] = {k: [] for k in everyone}
        self._heads = dict.fromkeys(everyone, 0)  # the last message that each client has acknowledged
        self._saved = [dict(self._heads)]  # the same at the last two checkpoints
        self._serial = 0
        self._shapes: dict[str, Tensor] | None = None

    @property
    def _names(self) -> list[str]:
        return [card.name for card in self.method.task.clients]

    # -- asking ----------------------------------------------------------------------------------------------------

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]:
        """One message to each client: what waits for it, then these actions. Where answers are hidden in a sum, those
        without a veil are not asked: they have missed it."""
        new = [Work(round_index, action) for action in actions]
        work = {k: [*self._due(k, round_index), *new] for k in clients}
        if masking is not None:
            for k in clients:
                if k not in masking:
                    self._missed(k, work.pop(k))
        return self._send(work, masking or {})

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        """Words about keys. No client's state changes by them."""
        self._look_around()
        letters = {k: Envelope({"run": self._run, "client": k, "confer": told}) for k, told in requests.items()}
        for k, answer in self._post.deliver(letters, within=KEYS):
            if isinstance(answer, str):
                yield Reply(k, error=answer)
            else:
                keys = answer.header.get("keys")
                yield Reply(k, keys=keys if isinstance(keys, dict) else {})

    def defer(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> None:
        for k in clients:
            self._waiting[k] += [Work(round_index, action) for action in actions]

    def defer_evaluation(self, round_index: int, weights: dict[str, Tensor] | None) -> None:
        payload = None if weights is None else state_payload("weights", weights)
        for waiting in self._waiting.values():
            waiting.append(Work(round_index, weights=payload))

    def flush(self, round_index: int) -> Iterator[Reply]:
        due = {k: self._due(k, round_index) for k in self._waiting}
        return self._send({k: work for k, work in due.items() if work})

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """Accuracies now, for whoever does not want to wait for them."""
        self.defer_evaluation(0, weights)
        rows = {reply.client: list(reply.news[0].row or []) for reply in self.flush(0) if 0 in reply.news}
        return [rows.get(k, []) for k in range(len(self.method.task.clients))]

    def _look_around(self) -> None:
        """Take note of sites that have just come."""
        task = self.method.task
        cards = self._post.arrivals(task.clients)
        if cards != task.clients:
            self.method.task = replace(task, clients=cards)

    def _send(
        self, work: Mapping[int, list[Work]], masking: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
    ) -> Iterator[Reply]:
        self._look_around()
        self._serial += 1
        serial = self._serial
        packed: dict[int, bytes] = {}  # what all hear is packed once
        letters = {k: self._letter(k, items, serial, packed) for k, items in work.items()}
        for k, masking_request in masking.items():
            letters[k].header["veil"] = masking_request
        for k, answer in self._post.deliver(letters):
            reply = self._reply(k, answer)
            if reply.error:
                self._missed(k, work[k])
            else:
                self._heads[k] = serial
                self._waiting[k] = []
            yield reply

    def _letter(self, client: int, work: Sequence[Work], serial: int, packed: dict[int, bytes]) -> Envelope:
        letter = Envelope(
            {
                "run": self._run,
                "client": client,
                "serial": serial,
                "base": self._heads[client],
                "keep": sorted({saved[client] for saved in self._saved}),
                "plan": self._plan(),
            },
            shared=packed,
        )
        letter.header["work"] = _pack_work(letter, work, client)
        return letter

    def _plan(self) -> dict[str, Any]:
        method = self.method
        return {
            "method": method.name,
            "settings": method.params.model_dump(mode="json"),
            "task": pack_task(method.task),
            "public": self._public,
        }

    def _reply(self, client: int, answer: Envelope | str) -> Reply:
        if isinstance(answer, str):
            return Reply(client, error=answer)
        try:
            parts, news, seconds = unpack_reply(answer)
        except MessageError as error:
            return Reply(client, error=str(error))
        for phase, value in seconds.items():
            if phase in self.seconds:
                self.seconds[phase] += value
        keys = answer.header.get("keys")
        return Reply(client, parts, news=news, keys=keys if isinstance(keys, dict) else {})

    def _missed(self, client: int, work: Sequence[Work]) -> None:
        """Keep what a client must still do before it can take part again: its steps, but not what nobody hears."""
        steps = [item for item in work if item.action is not None and not isinstance(item.action, Exchange)]
        self._waiting[client] = steps

    def _due(self, client: int, round_index: int) -> list[Work]:
        """What waits for a client. Rounds that it missed whole are left out, but for the first, where methods open."""
        due = [item for item in self._waiting[client] if item.round == 0 or item.round >= round_index - 1]
        self._waiting[client] = due
        return due

    # -- state -----------------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """Where everyone stands, and what waits to be sent. The models are at the sites."""
        self._saved = [self._saved[-1], dict(self._heads)]
        letter = Envelope({"run": self._run, "names": self._names, "serial": self._serial, "heads": self._heads})
        letter.header["waiting"] = {k: _pack_work(letter, work, k) for k, work in self._waiting.items()}
        blobs = [letter.text().encode(), *letter.blobs]
        yield "flower", {f"{n:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for n, raw in enumerate(blobs)}

    def saved(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        pass  # all of it is written every time

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        header, *blobs = [t.numpy().tobytes() for _, t in sorted(read("flower").items())]
        letter = Envelope(json.loads(header), blobs)
        if letter.header["names"] != self._names:
            before, now = ", ".join(letter.header["names"]), ", ".join(self._names)
            raise UsageError(f"cannot resume: the sites were {before} and are now {now}; revoked = true locks one out")
        self._run, self._serial = letter.header["run"], int(letter.header["serial"])
        self._heads = {int(k): int(n) for k, n in letter.header["heads"].items()}
        self._saved = [dict(self._heads)]
        self._waiting = {int(k): self._unpack(letter, work) for k, work in letter.header["waiting"].items()}

    def _unpack(self, letter: Envelope, packed: Sequence[Mapping[str, Any]]) -> list[Work]:
        work = []
        for item in packed:
            if "name" in item:
                work.append(Work(item["round"], unpack_action(letter, item, self.method)))
            else:
                weights = None if item["evaluate"] is None else letter.get(item["evaluate"])
                work.append(Work(item["round"], weights=weights))
        return work

    def model_shapes(self) -> dict[str, Tensor]:
        """The state of the shared architecture, for checking weights that arrive."""
        if self._shapes is None:
            task = self.method.task
            with seeded(task.seed, "shapes"):
                model = build(task.clients[0].model, len(task.classes), image_size=task.image_size)
            if self.method.params.dp_noise:
                without_batchnorm(model)
            self._shapes = dict(model.state_dict())
        return self._shapes


def _pack_work(letter: Envelope, work: Sequence[Work], client: int) -> list[dict[str, Any]]:
    packed = []
    for item in work:
        if item.action is not None:
            packed.append({"round": item.round, **pack_action(letter, item.action, client)})
        else:
            packed.append({"round": item.round, "evaluate": None if item.weights is None else letter.put(item.weights)})
    return packed
