"""FedExg. Mao et al., FedExg: Federated Learning with Model Exchange, ISCAS 2020."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, ValidationError, ValidationInfo, field_validator
from torch import Tensor

from fedchoir.core.actions import Exchange, Round, Script, Step
from fedchoir.core.aggregation import gather
from fedchoir.core.assignment import derangement, random_costs
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.feddecorr import FedDecorr
from fedchoir.methods.fedntd import FedNTD
from fedchoir.methods.fedprox import FedProx
from fedchoir.methods.moon import MOON
from fedchoir.payload import MODEL, Payload, sends

BASES: dict[str, type[FedAvg]] = {m.name: m for m in (FedAvg, FedProx, MOON, FedNTD, FedDecorr)}
Models = dict[int, Payload]


class FedExgParams(Settings):
    base: Literal["fedavg", "fedprox", "moon", "fedntd", "feddecorr"] = Field(
        "fedavg", description="method of the local training before the exchange (phase I)"
    )
    base_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the base method's own, for example {mu = 0.1}"
    )
    exchanges: NonNegativeInt = Field(1, description="N_e: exchanges of models between two averagings")
    cross_epochs: NonNegativeInt | None = Field(
        None, description="epochs with another client's model after each exchange; default: local_epochs"
    )

    @field_validator("base_options")
    @classmethod
    def _known_to_the_base(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        base = BASES[info.data.get("base", "fedavg")]
        if shared := sorted(set(value) & set(Settings.model_fields)):
            raise ValueError(f"options of {base.name} alone: {shared[0]} is one of the whole run")
        try:
            base.Params(**value)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"options of {base.name}: {first['loc'][0]}: {first['msg']}") from None
        return value


class FedExg(FedAvg):
    """FedAvg with cross-training: after local training each model goes to another client and is trained there too.

    Who gets whose model is drawn anew for every exchange. A model counts in the average with the size of the client
    that trained it last. A client whose model did not arrive takes part in no exchange and keeps its own; where fewer
    than two models arrived, there is no exchange.
    """

    name = "fedexg"
    title = "models change places at random before they are averaged"
    paper = "Mao et al., ISCAS 2020"
    Params = FedExgParams
    params: FedExgParams

    def __init__(self, params: FedExgParams, task: FederationSpec) -> None:
        super().__init__(params, task)
        base = BASES[params.base]
        shared = {name: getattr(params, name) for name in Settings.model_fields}
        self.base = base(base.Params(**{**shared, **params.base_options}), task)
        self.moves: list[list[tuple[int, int]]] = []  # of this round: for each exchange, whose model went to whom

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its models change places, so each is passed on as it is"

    def round(self, r: Round) -> Script:
        self.moves = []
        if self.server:
            yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)  # phase I
        for number in range(self.params.exchanges):
            models = yield Exchange(self.offer, aggregator=gather, dims=self.dims)
            if len(models) >= 2:
                yield Step(self.cross_train, received=self.broadcast(models, r.index, number))  # phases II and III
        self.server = dict((yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)))  # phase IV

    def local_update(self, client: Client) -> None:
        self.base.local_update(client)

    @sends(weights=MODEL)
    def offer(self, client: Client) -> Payload:
        """What a client sends with its model when models change places."""
        return self.upload(client)

    def broadcast(self, models: Models, round_index: int, number: int) -> Models:
        """What every client gets: the model of another one."""
        senders = list(models)
        targets = derangement(self.costs(models, round_index, number))
        self.moves.append([(i, senders[j]) for i, j in zip(senders, targets, strict=True)])
        order = {"exchange": float(number)}
        return {j: Payload(models[i], scalars=order) for i, j in self.moves[-1]}

    def server_metrics(self) -> dict[str, Any]:
        return {"exchanges": self.moves}

    def costs(self, models: Models, round_index: int, number: int) -> Tensor:
        """N×N: what speaks against sending the model of the i-th of these clients to the j-th."""
        return random_costs(len(models), self.task.seed, "exchange", round_index, number)

    def cross_train(self, client: Client, received: Payload | None) -> None:
        if received is None:
            return
        self.download(client, received)
        epochs = self.params.cross_epochs
        if epochs is None:
            epochs = self.params.epochs_of(client.index)
        client.train(self.cross_loss, epochs=epochs, first=epochs * int(received.scalars["exchange"]), phase="cross")

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss on the private data of a client that trains another one's model."""
        return self.supervised_loss(client, batch)
