"""FedProto. Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022."""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from fedchoir.losses import class_prototypes, prototype_distance
from fedchoir.methods.api import Aggregator, Batch, Client, Exchange, Field, Round, Script, Step
from fedchoir.methods.nearest_prototype import NearestPrototype, PrototypeClassifier
from fedchoir.methods.server_training import missed_last_round
from fedchoir.methods.shared_features import SharedFeatureParams, SharedFeatures
from fedchoir.models import Model
from fedchoir.payload import Payload, sends


class FedProtoParams(SharedFeatureParams):
    prototype_weight: float = Field(1.0, ge=0, description="λ: weight of the distance to the global prototype")
    distance: Literal["mse", "squared", "euclidean"] = Field(
        "mse", description="distance to the global prototype: squared and divided by feature_dim as in the released "
        "code, squared as in the paper's appendix, or the Euclidean distance"
    )  # fmt: skip
    predict_by: Literal["prototypes", "head"] = Field(
        "prototypes", description="prediction: the class of the nearest global prototype, or the client's own head"
    )


class FedProto(SharedFeatures):
    """Clients exchange class prototypes and draw their features to the global ones.

    The prototype of class j at client i is its mean feature, C_i^j = mean of f_i(x) over D_ij (eq. 3), in eval mode
    after the local phase. The global prototype is the mean over the clients that have the class:

        C̄^j = Σ_i |D_ij| C_i^j / Σ_i |D_ij|   (eq. 6);   with ``weighting = uniform`` all of them count alike

    Local loss (eq. 7 and 8):  CE(z, y) + λ d(f_i(x), C̄^y);  in the first round CE alone.
    Prediction (eq. 4):  argmin_j ‖f_i(x) − C̄^j‖.

    Eq. 6 is printed with another factor 1/(number of clients), which would shrink all prototypes; it is left out. The
    released code averages uniformly. The paper's d compares a client's prototype with the global one; its appendix
    and its code compare single samples, as here. A class that no client of a round has keeps its last prototype.
    """

    name = "fedproto"
    title = "class prototypes averaged; features drawn to them"
    paper = "Tan et al., AAAI 2022"
    Params = FedProtoParams
    params: FedProtoParams

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        return {"nearest": NearestPrototype(model.num_classes, model.feature_dim)}

    def round(self, r: Round) -> Script:
        by_prototypes = self.params.predict_by == "prototypes"
        if self.server and (not by_prototypes or missed_last_round(self, r)):
            yield Step(self.store_prototypes, received=self.global_prototypes())
        yield Step(self.local_update)
        received = yield Exchange(self.share_prototypes, aggregator=self.aggregator, dims=self.dims)
        self.update_prototypes(r, received)
        if by_prototypes:  # for the evaluation of this round and the training of the next
            yield Step(self.store_prototypes, received=self.global_prototypes())

    # -- the client ------------------------------------------------------------------------------------------------

    @sends(prototypes="C d", share="C")
    def share_prototypes(self, client: Client) -> Payload:
        """The prototypes (C×d) times their weights, and the weights: shares of the private samples, or 1 and 0 (C)."""
        u, counts = self.local_prototypes(client)
        share = (counts > 0).float() if self.params.weighting == "uniform" else counts / counts.sum()
        return Payload(prototypes=share.unsqueeze(1) * u, share=share)

    def local_prototypes(self, client: Client) -> tuple[Tensor, Tensor]:
        """Mean features of the client's classes (C×d, zeros for a missing class) and their numbers of samples (C)."""
        return class_prototypes(client.predict_private("features"), client.private.labels, client.model.num_classes)

    def store_prototypes(self, client: Client, received: Payload) -> None:
        self.nearest(client).store(received["prototypes"], received["present"])

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        known = self.nearest(client)
        distance = prototype_distance(h, batch.labels, known.prototypes, known.present, self.params.distance)
        return client.cross_entropy(z, batch.labels) + self.params.prototype_weight * distance

    def nearest(self, client: Client) -> NearestPrototype:
        return cast(NearestPrototype, client.modules["nearest"])

    # -- the server ------------------------------------------------------------------------------------------------

    def aggregator(self) -> Aggregator:
        return self.weighting()

    def update_prototypes(self, r: Round, received: Any) -> None:
        """(mean of weighted prototypes) / (mean of weights); both means weight clients by their numbers of samples."""
        share = received["share"].cpu()
        present = share > 0
        prototypes = received["prototypes"].cpu() / share.clamp_min(1e-12).unsqueeze(1)
        before = self.server.get("present", torch.zeros_like(present))
        old = self.server.get("prototypes", torch.zeros_like(prototypes))
        self.server["prototypes"] = torch.where(present.unsqueeze(1), prototypes, old)
        self.server["present"] = before | present

    def global_prototypes(self) -> Payload:
        return Payload({name: self.server[name] for name in ("prototypes", "present")})

    # -- prediction ------------------------------------------------------------------------------------------------

    def predict(self, client: Client, inputs: Tensor) -> Tensor:
        if self.params.predict_by == "head":
            return super().predict(client, inputs)
        return self.nearest(client)(*client.trainer.forward(client, inputs))

    def inference_module(self, model: Model, modules: nn.ModuleDict) -> nn.Module:
        return PrototypeClassifier(model, modules["nearest"]) if self.params.predict_by == "prototypes" else model
