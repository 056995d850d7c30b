"""The base of the self-supervised methods: two views, an objective without labels, and linear evaluation."""

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedchoir.core.evaluation import Predict
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedfoa_exchange import FedFoAExchange, FedFoAExchangeParams
from fedchoir.methods.ssl.objectives import OBJECTIVES, decorrelation
from fedchoir.methods.ssl.probe import NearestNeighbours, fit_probe, knn_accuracy
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
    regulariser: Literal["none", "vicreg", "barlow"] = Field(
        "none",
        description="a control for FedFoA, decorrelation of Z without an exchange: VICReg or Barlow Twins",
    )
    regulariser_weight: float = Field(0.01, ge=0, description="weight of the regulariser")
    dropout: float | None = Field(
        None, ge=0, lt=1, description="probability of the encoder's dropout layers instead of their own; 0: off"
    )
    knn: int = Field(20, ge=0, description="neighbours of the kNN accuracy of every round; 0: off")
    evaluate_every: int = Field(10, ge=1, description="linear probe every n-th round; in the last three always")
    probe_epochs: int = Field(200, ge=1, description="epochs of the linear layer on frozen features")
    probe_lr: float = Field(1e-3, gt=0, description="learning rate (Adam) of the linear layer")
    probe_weight_decay: float = Field(1e-4, ge=0, description="weight decay (Adam) of the linear layer")
    probe_data: Literal["all", "own"] = Field(
        "all",
        description="labelled features that the evaluation is fitted on: of the training samples of all clients, or of "
        "the client's own; real sites have their own alone",
    )
    evaluation: Literal["probe", "knn"] = Field(
        "probe", description="accuracy of a linear layer on frozen features, or of their nearest neighbours (knn or 20)"
    )


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
        self.objective = OBJECTIVES[p.objective](p, self.dim)

    def build_model(self, name: str) -> Model:
        model = super().build_model(name)
        for layer in model.modules():
            if isinstance(layer, _DropoutNd) and self.params.dropout is not None:
                layer.p = self.params.dropout
        return model

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        calibration = nn.Linear(model.feature_dim, self.dim)
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
        if self.params.foa:
            for name, value in self.correlations(client).recorded().items():
                client.log_value(name, value)
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
        p = self.params
        z1, z2 = self.calibrated(client, batch.inputs), self.calibrated(client, batch["view2"])
        loss = self.objective.loss(client, batch, z1, z2)
        if p.regulariser != "none":
            loss = loss + p.regulariser_weight * decorrelation(p.regulariser, z1, z2)
        return loss + self.understanding(client, z1) if p.foa else loss

    # -- evaluation ------------------------------------------------------------------------------------------------

    @property
    def evaluates_on_pool(self) -> bool:
        return self.params.probe_data == "all"

    def predictor(self, client: Client) -> Predict:
        """Linear evaluation: one linear layer on the client's frozen features; or the votes of nearest neighbours."""
        p = self.params
        sets = self.pool or (client.private,)
        features = torch.cat([client.predict_samples(samples, "features") for samples in sets])
        labels = torch.cat([samples.labels for samples in sets])
        classify: Predict
        if p.evaluation == "knn":
            classify = NearestNeighbours(features, labels, client.model.num_classes, p.knn or 20)
        else:
            lr, decay = p.probe_lr, p.probe_weight_decay
            classify = fit_probe(client, features, labels, epochs=p.probe_epochs, lr=lr, weight_decay=decay)
        return lambda inputs: classify(client.features(inputs))
