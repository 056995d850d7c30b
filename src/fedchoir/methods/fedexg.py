"""FedExg. Mao et al., FedExg: Federated Learning with Model Exchange, ISCAS 2020."""

from typing import Any, Literal

from pydantic import NonNegativeInt, ValidationInfo, field_validator
from torch import Tensor

from fedchoir.core.assignment import derangement, random_costs
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step, gather
from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.feddecorr import FedDecorr
from fedchoir.methods.fedntd import FedNTD
from fedchoir.methods.fedprox import FedProx
from fedchoir.methods.moon import MOON
from fedchoir.payload import MODEL, Payload, sends
from fedchoir.utils.errors import UsageError

BASES: dict[str, type[FedAvg]] = {m.name: m for m in (FedAvg, FedProx, MOON, FedNTD, FedDecorr)}
Models = dict[int, Payload]


class FedExgParams(Settings):
    base: Literal["fedavg", "fedprox", "moon", "fedntd", "feddecorr"] = Field(
        "fedavg", description="method of the local training before the exchange (phase I)"
    )
    base_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the base method, for example {mu = 0.1}"
    )
    exchanges: NonNegativeInt = Field(1, description="N_e: exchanges of models per round, before averaging")
    cross_epochs: NonNegativeInt | None = Field(
        None, description="epochs with another client's model after each exchange; default: local_epochs"
    )

    rounds_unit: Literal["averaging", "interaction"] = Field(
        "averaging",
        description="what the run's number of rounds counts: averagings, or interactions, of which a round has N_e + 1",
    )

    def averaging_rounds(self, rounds: int) -> int:
        """
        >>> FedExgParams(rounds_unit="interaction", exchanges=1).averaging_rounds(100)
        50
        """
        return max(1, rounds // (self.exchanges + 1)) if self.rounds_unit == "interaction" else rounds

    @field_validator("base_options")
    @classmethod
    def _check_base_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        base = BASES[info.data.get("base", "fedavg")]
        if shared := sorted(set(value) & set(Settings.model_fields)):
            raise ValueError(f"only options of {base.name} itself: {shared[0]} is an option of the whole run")
        try:
            base.Params(**value)
        except UsageError as error:
            raise ValueError(f"options of {base.name}: {error}") from None
        return value


class FedExg(FedAvg):
    """FedAvg with cross-training: after local training each model is sent to another client and trained there, too.

    The assignment is drawn anew for every exchange. A model's weight in the average is the data size of the client that
    trained it last. A client whose model did not arrive keeps its own; with fewer than two models there is no exchange.
    """

    name = "fedexg"
    title = "models exchanged at random between clients before averaging"
    paper = "Mao et al., ISCAS 2020"
    Params = FedExgParams
    params: FedExgParams
    streams = {"share_model": "offer"}  # frozen stream name

    def __init__(self, params: FedExgParams, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        base = BASES[params.base]
        shared = {name: getattr(params, name) for name in Settings.model_fields}
        self.base = base(base.Params(**{**shared, **params.base_options}), spec)
        if params.rounds_unit == "interaction":
            self.notes.append(
                f"rounds count interactions: {spec.rounds} averagings, each after N_e = {params.exchanges}"
            )
        self.moves: list[list[tuple[int, int]]] = []  # (from, to) of every model, for each exchange of this round

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server forwards single models"

    def round(self, r: Round) -> Script:
        self.moves = []
        if self.server:
            yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)  # phase I
        for number in range(self.params.exchanges):
            models = yield Exchange(self.share_model, aggregator=gather, dims=self.dims)
            if len(models) >= 2:  # phases II and III
                for received in self.broadcast(models, r.index, number):
                    yield Step(self.cross_train, received=received)
        self.server = dict((yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)))  # phase IV

    def local_update(self, client: Client) -> None:
        self.base.local_update(client)

    @sends(weights=MODEL)
    def share_model(self, client: Client) -> Payload:
        """The model that another client will train."""
        return self.upload(client)

    def broadcast(self, models: Models, round_index: int, number: int) -> list[Models]:
        """Another client's model for every client (phase II), in steps."""
        senders = list(models)
        targets = self.targets(self.costs(models, round_index, number))
        self.moves.append([(i, senders[j]) for i, j in zip(senders, targets, strict=True)])
        return self.in_steps(self.moves[-1], models, number)

    def targets(self, costs: Tensor) -> list[int]:
        """The position of the client that gets the i-th client's model, for each i: each client is there once."""
        return derangement(costs)

    def in_steps(self, moves: list[tuple[int, int]], models: Models, number: int) -> list[Models]:
        """The models that clients receive, by client, in the steps of cross-training: one step for one model each."""
        return [{j: Payload(models[i], scalars={"exchange": float(number)}) for i, j in moves}]

    def server_metrics(self) -> dict[str, Any]:
        return {"exchanges": self.moves}

    def costs(self, models: Models, round_index: int, number: int) -> Tensor:
        """N×N: the cost of sending the i-th client's model to the j-th client."""
        return random_costs(len(models), self.spec.seed, "exchange", round_index, number)

    def cross_train(self, client: Client, received: Payload | None) -> None:
        if received is None:
            return
        self.download(client, received)
        p = self.params
        epochs = p.epochs_of(client.index) if p.cross_epochs is None else p.cross_epochs
        client.train(self.cross_loss, epochs=epochs, first=epochs * int(received.scalars["exchange"]), phase="cross")

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss of phase III, on another client's model."""
        return self.supervised_loss(client, batch)
