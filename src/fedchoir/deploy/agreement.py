"""What a site has agreed to: it compares every request with its own copy of the federation's file and of the method.

`Agreement` fixes the method, its settings, the public set, the rounds and the sites. `check_sequence` accepts an action
only if the method's own round contains it, in order and once. A server can leave actions out, but it cannot add, repeat
or reorder them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedchoir.core.actions import Action
from fedchoir.core.eligibility import Secure
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.script import ActionName, action_name, action_sequences
from fedchoir.deploy.config import FederationFile, read_federation
from fedchoir.engines.messages import MessageError
from fedchoir.experiments.run import public_options
from fedchoir.methods.base import Method
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

    @classmethod
    def read(cls, path: Path) -> Agreement:
        return cls.of(read_federation(path))

    @classmethod
    def of(cls, federation: FederationFile) -> Agreement:
        plan = federation.plan()
        return cls(
            federation.method, plan.params.model_dump(mode="json"), public_options(plan), federation.rounds,
            federation.seed, federation.secure, tuple(site.name for site in federation.sites),
        )  # fmt: skip

    def check_plan(self, plan: Mapping[str, Any]) -> None:
        """Raise `MessageError` unless method, settings and public set are those of the agreed file."""
        if plan["method"] != self.method:
            raise MessageError(
                f"refused: the server asks for {plan['method']!r}, and the agreed file has {self.method!r}"
            )
        for name in sorted({*plan["settings"], *self.settings}):
            asked, agreed = plan["settings"].get(name), self.settings.get(name)
            if asked != agreed:
                raise MessageError(
                    f"refused: the server asks for {name} = {asked!r}, and the agreed file has {agreed!r}"
                )
        asked = {key: value for key, value in (plan["public"] or {}).items() if key != "digest"}
        if asked != dict(self.public or {}):
            raise MessageError("refused: the server names another public set than the agreed file")

    def check_spec(self, spec: FederationSpec) -> None:
        """Raise `MessageError` unless rounds, seed and sites are those of the agreed file."""
        sites = tuple(client.name for client in spec.clients)
        for name, asked, agreed in (
            ("rounds", spec.rounds, self.rounds), ("seed", spec.seed, self.seed), ("sites", sites, self.sites),
        ):  # fmt: skip
            if asked != agreed:
                raise MessageError(f"refused: the server gives {name} = {asked!r}, and the agreed file has {agreed!r}")


class Position(NamedTuple):
    """The last action that a client has carried out: its round, and its number in that round's sequence."""

    round: int = -1
    number: int = -1


def check_sequence(
    method: Method,
    work: Sequence[tuple[int, Action | None]],
    position: Position,
    folder: Path,
    model: Mapping[str, Tensor] | None,
) -> Position:
    """The position after the work, (round, action) each; None stands for an evaluation.

    Raises `MessageError` if an action is not in the method's own sequence after the position. Sequences are stored in
    ``folder``, one file a round: computing one means running the server's part of all rounds before it, without data.
    """
    for index, action in work:
        if not max(position.round, 0) <= index < method.spec.rounds:
            raise MessageError(f"refused: round {index + 1} is over, or not in the agreed {method.spec.rounds} rounds")
        number = position.number if index == position.round else -1
        if action is not None:
            sequence, wanted = _sequence(method, index, folder, model), action_name(action)
            number = next((n for n in range(number + 1, len(sequence)) if sequence[n] == wanted), -1)
            if number < 0:
                raise MessageError(
                    f"refused: {wanted.kind} {wanted.function!r} is not what {method.name} does next in round "
                    f"{index + 1}"
                )
        position = Position(index, number)
    return position


def _sequence(method: Method, index: int, folder: Path, model: Mapping[str, Tensor] | None) -> list[ActionName]:
    path = folder / f"sequence-{index:05d}.json"
    if path.exists():
        return [ActionName.read(packed) for packed in json.loads(path.read_text())]
    sequence = next(islice(action_sequences(method, model), index, None))
    atomic_write_json(path, sequence)
    return sequence
