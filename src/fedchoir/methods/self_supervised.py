"""The base of the self-supervised methods: two views, an objective without labels, and linear evaluation."""

from typing import Literal, cast

from torch import Tensor, nn

from fedchoir.core.evaluation import Predict
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedfoa_exchange import FedFoAExchange, FedFoAExchangeParams
from fedchoir.methods.ssl.objectives import OBJECTIVES
from fedchoir.methods.ssl.probe import fit_probe, knn_accuracy
from fedchoir.models import Model
from fedchoir.utils.errors import UsageError


class SelfSupervisedParams(FedFoAExchangeParams):
    objective: Literal["byol", "simsiam", "simclr"] = Field("byol", description="self-supervised loss")
    hidden: int = Field(4096, ge=2, description="width of the hidden layers of the projection and prediction heads")
    projector: Literal["mlp", "linear"] = Field(
        "mlp", description="mlp: lightly's head on Z; linear: Z itself is the projection (Fig. 3 of FedFoA)"
    )
    target_momentum: float = Field(0.99, ge=0, le=1, description="BYOL: momentum of the target network")
    target_schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="BYOL: the target's momentum increases to 1 along a cosine, or is constant"
    )
    temperature: float = Field(0.5, gt=0, description="SimCLR: τ of NT-Xent")
    knn: int = Field(20, ge=0, description="neighbours of the kNN accuracy of every round; 0: off")
    evaluate_every: int = Field(10, ge=1, description="linear probe every n-th round; in the last three always")
    probe_epochs: int = Field(200, ge=1, description="epochs of the linear layer on frozen features")
    probe_lr: float = Field(1e-3, gt=0, description="learning rate (Adam) of the linear layer")


class SelfSupervised(FedFoAExchange):
    """Clients train without labels. A subclass defines what they exchange."""

    Params = SelfSupervisedParams
    params: SelfSupervisedParams
    evaluates_per_client = True
    uses_labels = False

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        p = self.params
        if p.private_augment == "none":
            raise UsageError("private_augment = 'none' gives two equal views; it should be strong, weak or fccl")
        self.objective = OBJECTIVES[p.objective](p)

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        calibration = nn.Linear(model.feature_dim, self.params.dim)
        heads = self.objective.modules(model, calibration)
        return {"calibration": calibration, **heads, **super().extra_modules(model)}

    # -- local phase, without labels --------------------------------------------------------------------------------

    def pretrain(self, client: Client) -> None:
        self.train(client, self.params.pretrain_epochs, "pretrain")

    def local_update(self, client: Client) -> None:
        if self.params.foa:
            self.check_batch_size(self.spec.clients[client.index].name, len(client.private))
            self.correlations(client).reset()
        self.train(client, self.params.epochs_of(client.index), "local")
        if self.params.knn:
            features, labels = client.predict_private("features"), client.private.labels
            client.log_value("knn", knn_accuracy(features, labels, client.model.num_classes, self.params.knn))

    def train(self, client: Client, epochs: int, phase: str) -> None:
        client.train(self.local_loss, epochs=epochs, phase=phase, views=2, after_step=self.objective.after_step)

    def calibrated(self, client: Client, images: Tensor) -> Tensor:
        """Calibrated features Z, B×n."""
        return cast(Tensor, client.modules["calibration"](client.features(images)))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """ℓ_SSL + λ Σ_j ℓ_A (FedFoA eq. 13)."""
        z1, z2 = self.calibrated(client, batch.inputs), self.calibrated(client, batch["view2"])
        loss = self.objective.loss(client, batch, z1, z2)
        return loss + self.understanding(client, z1) if self.params.foa else loss

    # -- evaluation ------------------------------------------------------------------------------------------------

    def predictor(self, client: Client) -> Predict:
        """Linear evaluation: one linear layer on the client's frozen features."""
        probe = fit_probe(client, epochs=self.params.probe_epochs, lr=self.params.probe_lr)
        return lambda inputs: probe(client.features(inputs))
