"""SOLO (the papers' BASE): every client learns alone."""

from __future__ import annotations

from pydantic import Field

from fedchoir.core.actions import Round, Script, Step
from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.methods.base import Method


class SoloParams(Settings):
    epochs: int = Field(
        0,
        ge=0,
        description="epochs in all, spread over the rounds (the papers' BASE: 50); 0 gives local_epochs each round, "
        "the same training as every other method",
    )


class Solo(Method):
    """No exchange at all: what a client reaches on its own data."""

    name = "solo"
    title = "every client alone (the papers' BASE)"
    Params = SoloParams
    supports_dp = True
    profiles = {"paper": {"epochs": 50}, "official": {"epochs": 50}}
    params: SoloParams

    def round(self, r: Round) -> Script:
        yield Step(self.local_update)

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss, epochs=self.epochs_in(client))

    def epochs_in(self, client: Client) -> int:
        """This round's share of the epochs."""
        total, rounds, index = self.params.epochs, self.spec.rounds, client.round
        if total == 0:
            return self.params.epochs_of(client.index)
        return total * (index + 1) // rounds - total * index // rounds
