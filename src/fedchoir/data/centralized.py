"""All private images in one place: no federation at all, and what one is to be measured by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedchoir.data.image.image_set import concatenate
from fedchoir.data.splits import unseen

if TYPE_CHECKING:
    from fedchoir.data.scenario import Scenario


def pooled(scenario: Scenario) -> Scenario:
    """The scenario with the private images of all clients in the hands of each. What is in any test set is left out:
    a client may hold a copy of an image that another one is tested on."""
    together = concatenate(*(client.train for client in scenario.clients))
    whole = len(together)
    for test in scenario.tests.values():
        together = together.subset(unseen(together, test))
    note = f"POOLED: every client trains on the {len(together)} private images of all clients, as if in one place"
    if left_out := whole - len(together):
        note += f"; {left_out} more are left out, because they are in a test set"
    clients = tuple(replace(client, train=together) for client in scenario.clients)
    return replace(scenario, clients=clients, notes=(*scenario.notes, note))
