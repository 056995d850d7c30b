"""How a client carries out one action: the same code at every site, whatever the engine."""

from __future__ import annotations

from fedchoir.federation.client import Client
from fedchoir.federation.payload import Payload, check, declared_by
from fedchoir.federation.phases import Action, Exchange, PublicBatch, heard_by
from fedchoir.federation.robust import corrupted
from fedchoir.rng import derive, seed_all


def perform(client: Client, action: Action) -> list[Payload]:
    """Call the action's function, once or once a batch. The answers of an exchange are checked before they leave."""
    client.phase = action.function.__name__
    answers: list[Payload] = []
    for part, batch in enumerate(action.batches or (None,)):
        _seed(client, batch)
        arguments = [client, *([batch] if batch else []), *_heard(action, client, part)]
        answer = action.function(*arguments)
        if isinstance(action, Exchange):
            answers.append(answer)
    if isinstance(action, Exchange):
        _check_outgoing(client, action, answers)
        if client.hostile:
            answers = corrupted(answers, client.settings.attack, client._draw("attack"))
    return answers


def _heard(action: Action, client: Client, part: int) -> list[Payload | None]:
    if action.heard is None:
        return []
    heard = heard_by(action.heard, client.index, part)
    return [heard.to(client.device) if heard is not None else None]


def _seed(client: Client, batch: PublicBatch | None) -> None:
    # For what draws from torch's global generator: dropout and the like.
    where = (batch.epoch, batch.index) if batch else ()
    seed_all(derive(client.seed, "draw", client.index, client.round, client.phase, *where))


def _check_outgoing(client: Client, action: Exchange, answers: list[Payload]) -> None:
    """Names, shapes and dtypes: what was not declared does not leave the client. (A bug in the method: it raises.)"""
    declared = declared_by(action.speak)
    for number, answer in enumerate(answers):
        local = action.batches[number].dims if action.batches else {}
        dims = {"C": client.model.num_classes, **action.dims, **local}
        check(answer, declared, dims, client.model.state_dict(), parts=client.parts.state_dict(), finite=False)
