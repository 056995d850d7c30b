"""The base of the self-supervised methods: two views, an objective without labels, and a probe to judge by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from pydantic import Field
from torch import Tensor, nn

from fedchoir.core.client import Client
from fedchoir.core.evaluation import accuracy
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.image.image_set import ImageSet
from fedchoir.methods.fedfoa_exchange import FedFoAExchange, FedFoAExchangeParams
from fedchoir.methods.ssl import objectives
from fedchoir.methods.ssl.probe import fit_probe, knn_accuracy
from fedchoir.models import VisionModel
from fedchoir.utils.errors import UsageError


class SelfSupervisedParams(FedFoAExchangeParams):
    objective: Literal["byol", "simsiam", "simclr"] = Field("byol", description="what two views of an image teach")
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


SETTING = {
    "optimizer": "sgd", "momentum": 0.9, "local_lr": 0.032, "local_weight_decay": 5e-4, "local_batch": 500,
    "local_epochs": 5, "private_augment": "strong",
}  # fmt: skip


class SelfSupervised(FedFoAExchange):
    """Clients whose images have no labels. A subclass says what they exchange."""

    Params = SelfSupervisedParams
    params: SelfSupervisedParams
    evaluates_per_client = True
    profiles = {
        "fixed": SETTING,
        "paper": {**SETTING, "partition": "iid", "foa_scale": "raw"},
        "official": {**SETTING, "foa_scale": "raw"},
    }

    def __init__(self, params: Settings, task: FederationSpec) -> None:
        super().__init__(params, task)
        p = self.params
        if p.private_augment == "none":
            raise UsageError("private_augment = 'none' gives two equal views; it should be strong, weak or fccl")
        self.objective = objectives.make(
            p.objective, p.dim, p.hidden, linear=p.projector == "linear", temperature=p.temperature,
            momentum=p.target_momentum, schedule=p.target_schedule,
        )  # fmt: skip

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        calibration = nn.Linear(model.feature_dim, self.params.dim)
        parts = {"calibration": calibration, **self.objective.parts(model, calibration)}
        return parts | super().extra_modules(model)

    # -- the local phase: no labels --------------------------------------------------------------------------------

    def pretrain(self, client: Client) -> None:
        self.train(client, self.params.pretrain_epochs, "pretrain")

    def local_update(self, client: Client) -> None:
        if self.params.foa:
            self.check_images(self.task.clients[client.index].name, len(client.private))
            self.correlations(client).reset()
        self.train(client, self.params.epochs_of(client.index), "local")
        if self.params.knn:
            features, labels = client.predict_private("features"), client.private.labels
            client.log_value("knn", knn_accuracy(features, labels, client.model.num_classes, self.params.knn))

    def train(self, client: Client, epochs: int, phase: str) -> None:
        client.train(self.local_loss, epochs=epochs, phase=phase, views=2, after_step=self.objective.after_step)

    def calibrated(self, client: Client, images: Tensor) -> Tensor:
        """Z: B×n."""
        return cast(Tensor, client.modules["calibration"](client.features(images)))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """ℓ_SSL + λ Σ_j ℓ_A (FedFoA eq. 13)."""
        z1, z2 = self.calibrated(client, batch.images), self.calibrated(client, batch["view2"])
        loss = self.objective.loss(client, batch, z1, z2)
        return loss + self.understanding(client, z1) if self.params.foa else loss

    # -- how good is it --------------------------------------------------------------------------------------------

    def evaluate(self, client: Client, tests: Iterable[ImageSet]) -> list[float]:
        """Linear evaluation: one probe on the client's frozen features, tried on every test set."""
        probe = fit_probe(client, epochs=self.params.probe_epochs, lr=self.params.probe_lr)
        client.model.eval()
        return [accuracy(lambda images: probe(client.features(images)), test, self.task.top_k) for test in tests]
