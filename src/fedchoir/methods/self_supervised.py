"""The base of the self-supervised methods: two views, an objective without labels, and a probe to judge by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from pydantic import Field
from torch import Tensor, nn

from fedchoir.data.images import ImageSet
from fedchoir.errors import UsageError
from fedchoir.federation.aggregate import gather
from fedchoir.federation.client import Client
from fedchoir.federation.evaluate import accuracy
from fedchoir.federation.payload import Payload, says
from fedchoir.federation.phases import Exchange, Round, Script, Step
from fedchoir.federation.settings import Settings
from fedchoir.federation.task import Task
from fedchoir.federation.training import Batch
from fedchoir.losses.factorization import Solver
from fedchoir.methods.method import Method
from fedchoir.models import VisionModel
from fedchoir.ssl import objectives
from fedchoir.ssl.foa import Correlations, Scale, choose, distances
from fedchoir.ssl.probe import fit_probe, knn_accuracy

BANK = "correlation/"


class SelfSupervisedParams(Settings):
    objective: Literal["byol", "simsiam", "simclr"] = Field("byol", description="what two views of an image teach")
    dim: int = Field(256, ge=2, description="n: width of the calibrated features Z, and of the projections")
    hidden: int = Field(4096, ge=2, description="width of the hidden layers of the projection and prediction heads")
    projector: Literal["mlp", "linear"] = Field(
        "mlp", description="mlp: lightly's head projects Z; linear: Z itself is the projection (Fig. 3 of FedFoA)"
    )
    target_momentum: float = Field(0.99, ge=0, le=1, description="BYOL: what the target keeps of itself in a step")
    target_schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="BYOL: the target's momentum rises to 1 along a cosine, or stays"
    )
    temperature: float = Field(0.5, gt=0, description="SimCLR: τ of NT-Xent")
    knn: int = Field(20, ge=0, description="neighbours of the kNN monitor of every round; 0 leaves it out")
    evaluate_every: int = Field(10, ge=1, description="linear probe every n-th round; in the last three always")
    probe_epochs: int = Field(200, ge=1, description="epochs of the linear layer on frozen features")
    probe_lr: float = Field(1e-3, gt=0, description="learning rate (Adam) of the linear layer")
    foa: bool = Field(False, description="FedFoA's exchange of feature correlations on top of the method")
    foa_weight: float = Field(0.01, ge=0, description="λ of FedFoA eq. 13: weight of the mutual understanding")
    foa_scale: Scale = Field(
        "unit", description="FedFoA: features at unit length, so that Tr(R) measures independence alone, or raw (paper)"
    )
    t_warm: int = Field(5, ge=0, description="rounds before the correlations of others are heeded")
    peers: int = Field(0, ge=0, description="others whose correlations a client hears in a round, drawn; 0 means all")
    solver: Solver = Field(
        "auto", description="FedFoA: QR and SVD (factors) or Cholesky and matrix products; auto is factors on the CPU"
    )


SETTING = {
    "optimizer": "sgd", "momentum": 0.9, "local_lr": 0.032, "local_weight_decay": 5e-4, "local_batch": 500,
    "local_epochs": 5, "private_augment": "strong",
}  # fmt: skip


class SelfSupervised(Method):
    """Clients whose images have no labels. A subclass says what they exchange."""

    Params = SelfSupervisedParams
    params: SelfSupervisedParams
    personal_score = True
    profiles = {
        "fixed": SETTING,
        "paper": {**SETTING, "partition": "iid", "foa_scale": "raw"},
        "official": {**SETTING, "foa_scale": "raw"},
    }

    @classmethod
    def needs_each(cls, params: Settings) -> str:
        assert isinstance(params, SelfSupervisedParams)
        return "foa = true keeps each client's correlation matrix; it should be false" if params.foa else ""

    def __init__(self, params: Settings, task: Task) -> None:
        super().__init__(params, task)
        p = self.params
        if p.private_augment == "none":
            raise UsageError("private_augment = 'none' gives two equal views; it should be strong, weak or fccl")
        for card in task.clients if p.foa else ():
            if (rows := min(p.local_batch, card.train)) < p.dim:
                larger = f", or local_batch to {p.dim} or more" if card.train >= p.dim else ""
                raise UsageError(
                    f"dim = {p.dim} is not possible with foa: {card.name} has batches of {rows} images, and a "
                    f"correlation matrix needs at least dim; set dim to {rows} or less{larger}"
                )
        self.objective = objectives.make(
            p.objective, p.dim, p.hidden, linear=p.projector == "linear", temperature=p.temperature,
            momentum=p.target_momentum, schedule=p.target_schedule,
        )  # fmt: skip

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        calibration = nn.Linear(model.feature_dim, self.params.dim)
        parts = {"calibration": calibration, **self.objective.parts(model, calibration)}
        return (
            {**parts, "correlations": Correlations(self.params.dim, self.params.foa_scale)}
            if self.params.foa
            else parts
        )

    # -- the local phase: no labels --------------------------------------------------------------------------------

    def pretrain(self, client: Client) -> None:
        self.train(client, self.params.pretrain_epochs, "pretrain")

    def practise(self, client: Client) -> None:
        if self.params.foa:
            self.correlations(client).reset()
        self.train(client, self.params.epochs_of(client.index), "local")
        if self.params.knn:
            features, labels = client.survey("features"), client.private.labels
            client.note("knn", knn_accuracy(features, labels, client.model.num_classes, self.params.knn))

    def train(self, client: Client, epochs: int, phase: str) -> None:
        client.fit(self.local_loss, epochs=epochs, phase=phase, views=2, after_step=self.objective.after_step)

    def calibrated(self, client: Client, images: Tensor) -> Tensor:
        """Z: B×n."""
        return cast(Tensor, client.parts["calibration"](client.features(images)))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """ℓ_SSL + λ Σ_j ℓ_A (FedFoA eq. 13)."""
        z1, z2 = self.calibrated(client, batch.images), self.calibrated(client, batch["view2"])
        loss = self.objective.loss(client, batch, z1, z2)
        if self.params.foa:
            peers = cast(Tensor | None, client.memory.get("peers"))
            loss = loss + self.params.foa_weight * self.correlations(client).term(z1, peers, self.params.solver)
        return loss

    # -- FedFoA's exchange: one n×n matrix a round -----------------------------------------------------------------

    def correlations(self, client: Client) -> Correlations:
        return cast(Correlations, client.parts["correlations"])

    def hear_correlations(self, r: Round) -> Script:
        """Before the local phase: the others' R̄ from the memory bank."""
        if not self.params.foa or r.index < self.params.t_warm:
            return
        if chosen := choose(self.bank, r.clients, self.params.peers, self.task.seed, r.index):
            yield Step(self.hear, heard={k: Payload(correlations=rs) for k, rs in chosen.items()})

    def share_correlations(self) -> Script:
        """After it: the client's own R̄ into the memory bank."""
        if self.params.foa:
            told = yield Exchange(self.tell, combine=gather, dims={"N": self.params.dim})
            self.server |= {f"{BANK}{k}": payload["correlation"] for k, payload in told.items()}

    def hear(self, client: Client, heard: Payload | None) -> None:
        if heard is None:
            client.memory.pop("peers", None)
        else:
            client.memory["peers"] = heard["correlations"]

    @says(correlation="N N")
    def tell(self, client: Client) -> Payload:
        return Payload(correlation=self.correlations(client).mean())

    @property
    def bank(self) -> dict[int, Tensor]:
        """R̄ of every client that has spoken."""
        return {int(name.removeprefix(BANK)): r for name, r in self.server.items() if name.startswith(BANK)}

    def measures(self) -> dict[str, Any]:
        return {"correlation_distance": distances(self.bank, len(self.task.clients))} if self.params.foa else {}

    # -- how good is it --------------------------------------------------------------------------------------------

    def row(self, client: Client, tests: Iterable[ImageSet]) -> list[float]:
        """Linear evaluation: one probe on the client's frozen features, tried on every test set."""
        probe = fit_probe(client, epochs=self.params.probe_epochs, lr=self.params.probe_lr)
        client.model.eval()
        return [accuracy(lambda images: probe(client.features(images)), test, self.task.top_k) for test in tests]
