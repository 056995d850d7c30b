"""What a site has agreed to: it compares every request with its own copy of the federation's file and of the method.

`Agreement` fixes the method, its settings, the public set, the rounds, the sites and their models. `check_sequence`
accepts an action only if the method's own round contains it, in order and once. A server can leave actions out, but it
cannot add, repeat or reorder them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.eligibility import Secure
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.script import ActionName, action_name, action_sequences
from fedchoir.deploy.config import FederationFile, read_federation
from fedchoir.engines.headers import InfoHeader, MessageError
from fedchoir.experiments.prepare import public_options
from fedchoir.methods.base import Method
from fedchoir.privacy.secure_aggregation.terms import SumTerms
from fedchoir.utils.io import atomic_write_json


@dataclass(frozen=True)
class Agreement:
    """The federation's file, as the site's operator has read and accepted it."""

    method: str
    settings: Mapping[str, Any]
    public: Mapping[str, Any] | None
    rounds: int
    seed: int
    secure: Secure
    sites: tuple[str, ...]
    metric: str = "accuracy"
    models: tuple[str | None, ...] = ()  # by site, as messages name them; None where the file leaves a model open
    classes: tuple[str, ...] | None = None  # None where the file leaves them to the sites
    compress: str = ""

    @classmethod
    def read(cls, path: Path) -> Agreement:
        return cls.of(read_federation(path))

    @classmethod
    def of(cls, federation: FederationFile) -> Agreement:
        plan = federation.plan()
        return cls(
            federation.method, plan.params.model_dump(mode="json"), public_options(plan), federation.rounds,
            federation.seed, federation.secure, tuple(site.name for site in federation.sites), federation.metric,
            tuple(site.public_model for site in federation.sites), federation.classes, federation.compress or "",
        )  # fmt: skip

    def check_request(self, request: InfoHeader) -> None:
        """Raise `MessageError` unless method, settings and public set are those of the agreed file."""
        if request.method != self.method:
            raise MessageError(
                f"refused: the server asks for {request.method!r}, and the agreed file has {self.method!r}"
            )
        for name in sorted({*request.settings, *self.settings}):
            asked, agreed = request.settings.get(name), self.settings.get(name)
            if asked != agreed:
                shown = "another path" if isinstance(agreed, str) and Path(agreed).name != agreed else repr(agreed)
                raise MessageError(f"refused: the server asks for {name} = {asked!r}, and the agreed file has {shown}")
        asked = {key: value for key, value in (request.public or {}).items() if key != "digest"}
        if asked != dict(self.public or {}):
            raise MessageError("refused: the server names another public set than the agreed file")

    def check_spec(self, spec: FederationSpec) -> None:
        """Raise `MessageError` unless the server describes the federation of the agreed file.

        Sizes are not compared: the file does not name them. A model is compared where the file names it. Where it does
        not, `FederationFile.plan` averages no weights unless its settings say so.
        """
        sites = tuple(client.name for client in spec.clients)
        classes = spec.classes if self.classes is None else self.classes
        for name, asked, agreed in (
            ("rounds", spec.rounds, self.rounds), ("seed", spec.seed, self.seed), ("sites", sites, self.sites),
            ("metric", spec.metric, self.metric), ("classes", spec.classes, classes),
            ("compress", spec.compress, self.compress),
            ("joins", spec.joins, ()), ("held_out", spec.held_out, None), ("top_k", spec.top_k, 1),
        ):  # fmt: skip
            if asked != agreed:
                raise MessageError(f"refused: the server gives {name} = {asked!r}, and the agreed file has {agreed!r}")
        for client, model in zip(spec.clients, self.models, strict=False):
            if model not in (None, client.model):
                raise MessageError(
                    f"refused: the server gives {client.name} the model {client.model!r}, and the agreed file has "
                    f"{model!r}"
                )


class Position(NamedTuple):
    """The last action that a client has carried out: its round, and its number in that round's sequence. A round's
    evaluation comes after all its actions."""

    round: int = -1
    number: int = -1


def check_sequence(
    method: Method, work: Sequence[tuple[int, Action | None]], position: Position, folder: Path
) -> Position:
    """The position after the work, (round, action) each; None stands for an evaluation.

    Raises `MessageError` if an action is not in the method's own sequence after the position, or if an exchange is not
    the last of the work. Sequences are stored in ``folder``, one file a round: computing one means running the server's
    part of all rounds before it, without data.
    """
    for place, (index, action) in enumerate(work, 1):
        if not max(position.round, 0) <= index < method.spec.rounds:
            raise MessageError(f"refused: round {index + 1} is over, or not in the agreed {method.spec.rounds} rounds")
        if isinstance(action, Exchange) and place < len(work):
            raise MessageError(f"refused: {action.function.__name__!r} is an exchange, and more work follows it")
        done = position.number if index == position.round else -1
        sequence = _sequence(method, index, folder)
        position = Position(index, _next(sequence, done, action))
        if position.number < 0:
            what = "an evaluation" if action is None else "{} {!r}".format(*action_name(action)[:2])
            raise MessageError(f"refused: {what} is not what {method.name} does next in round {index + 1}")
    return position


def _next(sequence: Sequence[ActionName], done: int, action: Action | None) -> int:
    """The number of an action in the sequence after ``done``; -1 if it is not there."""
    if action is None:
        return len(sequence) if done < len(sequence) else -1
    wanted = action_name(action)
    return next((n for n in range(done + 1, len(sequence)) if sequence[n].asks_for(wanted)), -1)


def sum_terms(method: Method, position: Position, folder: Path) -> SumTerms:
    """Who takes part in the secure sum of the exchange at a position, with which weights: from the site's own copy."""
    sequence = _sequence(method, position.round, folder)
    exchanges = [n for n, action in enumerate(sequence) if action.kind == "exchange"]
    weights = sequence[position.number].weights
    if position.number not in exchanges or weights is None:
        raise MessageError("refused: a secure sum of payloads of which the method takes no mean")
    names = tuple(client.name for client in method.spec.clients)
    return SumTerms((position.round, exchanges.index(position.number)), names, dict(weights))


def _sequence(method: Method, index: int, folder: Path) -> list[ActionName]:
    known = repr((method.name, method.params, method.spec))  # all that a sequence and its weights depend on
    path = folder / f"sequence-{index:05d}-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"
    if path.exists():
        return [ActionName.read(packed) for packed in json.loads(path.read_text())]
    sequence = next(islice(action_sequences(method), index, None))
    atomic_write_json(path, sequence)
    return sequence
