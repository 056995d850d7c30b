"""PGCT. Liu et al., Cross-Training with Prototypical Distillation for Improving the Generalization of Federated
Learning, ICME 2023."""

from __future__ import annotations

from pydantic import AliasChoices, Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.federation.client import Client
from fedchoir.federation.payload import MODEL, Payload, says
from fedchoir.federation.training import Batch
from fedchoir.losses import class_prototypes, prototype_contrast
from fedchoir.methods.fedexg import FedExg, FedExgParams


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

    @says(weights=MODEL, prototypes="C d", present="C:bool")
    def offer(self, client: Client) -> Payload:
        """The model, the mean feature of every class (FedCT eq. 1; C×d) and which classes there are (C)."""
        classes = client.model.num_classes
        u, counts = class_prototypes(client.survey("features"), client.private.labels, classes)
        return Payload(self.upload(client), prototypes=u, present=counts > 0)

    @property
    def dims(self) -> dict[str, int]:
        return {"d": self.architecture.feature_dim}

    def cross_train(self, client: Client, heard: Payload | None) -> None:
        if heard is not None:
            client.memory.update(self.guides(heard))
        super().cross_train(client, heard)

    def guides(self, heard: Payload) -> dict[str, Tensor]:
        """The prototypes that guide the training (C×d) and which classes have one (C)."""
        return {"prototypes": heard["prototypes"], "known": heard["present"]}

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.both(batch.images)
        u, known = client.recall_tensor("prototypes"), client.recall_tensor("known")
        contrast = prototype_contrast(h, batch.labels, u, self.params.tau2, known)
        return cross_entropy(z, batch.labels) + self.params.kappa * contrast
