"""A share of every client's own training samples, held back to choose its best round."""

from dataclasses import replace

from fedchoir.data.domain import SPLIT_SEED
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import Scenario
from fedchoir.data.splits import held_out
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

LEAST = 2  # samples on either side of the split


def validation_split(name: str, train: Samples, share: float) -> tuple[Samples, Samples | None]:
    """A client's training samples and its validation samples, classes in proportion; all and None if ``share`` is 0.

    The split does not depend on a run's seed, so that a site can state its sizes before a run.
    """
    if not share:
        return train, None
    rest, validation = held_out(train, generator(SPLIT_SEED, "validation share", name), share)
    if len(validation) < LEAST or len(rest) < LEAST:
        raise UsageError(
            f"validation = {share:g} is not possible with the {len(train)} training samples of client {name}: it would "
            f"leave {len(rest)} for training and {len(validation)} for validation, and {LEAST} are needed of each"
        )
    return rest, validation


def with_validation(scenario: Scenario, share: float) -> Scenario:
    """The scenario with a validation share of every client, if ``share`` is not 0."""
    if not share:
        return scenario
    clients = []
    for client in scenario.clients:
        train, validation = validation_split(client.name, client.train, share)
        clients.append(replace(client, train=train, validation=validation))
    note = f"a share of {share:g} of every client's training samples is held back for validation"
    return replace(scenario, clients=tuple(clients), notes=(*scenario.notes, note))
