"""PGCT. Liu et al., Cross-Training with Prototypical Distillation for Improving the Generalization of Federated
Learning, ICME 2023."""

from __future__ import annotations

from pydantic import AliasChoices, Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.losses import class_prototypes, prototype_contrast
from fedchoir.methods.fedexg import FedExg, FedExgParams
from fedchoir.payload import MODEL, Payload, sends


class PGCTParams(FedExgParams):
    kappa: float = Field(1.0, ge=0, description="κ: weight of the contrast to prototypes")
    tau2: float = Field(
        0.5,
        gt=0,
        validation_alias=AliasChoices("tau2", "prototype_temperature"),
        description="τ₂: temperature of the contrast to prototypes",
    )


class PGCT(FedExg):
    """FedExg whose models travel with the class prototypes of the client that they come from, and are held to them.

    This is the local view alone, as FedCT describes it: a class that the model's last client lacks has no prototype
    and is left out of the contrast. Prototypes are class means, where the paper finds them by clustering; its
    augmentation of features by attention to prototypes is left out, because its text is not at hand.
    """

    name = "pgct"
    title = "models change places at random, held to the prototypes they come with"
    paper = "Liu et al., ICME 2023"
    Params = PGCTParams
    params: PGCTParams

    @sends(weights=MODEL, prototypes="C d", present="C:bool")
    def offer(self, client: Client) -> Payload:
        """The model, the mean feature of every class (FedCT eq. 1; C×d) and which classes there are (C)."""
        classes = client.model.num_classes
        u, counts = class_prototypes(client.predict_private("features"), client.private.labels, classes)
        return Payload(self.upload(client), prototypes=u, present=counts > 0)

    @property
    def dims(self) -> dict[str, int]:
        return {"d": self.architecture.feature_dim}

    def cross_train(self, client: Client, received: Payload | None) -> None:
        if received is not None:
            client.memory.update(self.guides(received))
        super().cross_train(client, received)

    def guides(self, received: Payload) -> dict[str, Tensor]:
        """The prototypes that guide the training (C×d) and which classes have one (C)."""
        return {"prototypes": received["prototypes"], "known": received["present"]}

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.images)
        u, known = client.stored_tensor("prototypes"), client.stored_tensor("known")
        contrast = prototype_contrast(h, batch.labels, u, self.params.tau2, known)
        return cross_entropy(z, batch.labels) + self.params.kappa * contrast
