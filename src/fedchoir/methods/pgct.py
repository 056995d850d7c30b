"""PGCT. Liu et al., Cross-Training with Prototypical Distillation for Improving the Generalization of Federated
Learning, ICME 2023."""

from pydantic import AliasChoices
from torch import Tensor

from fedchoir.losses import class_prototypes, prototype_contrast
from fedchoir.methods.api import Batch, Client, Field
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
    """FedExg with a contrast to the class prototypes of the client that a model comes from.

    This is the local view alone, as FedCT describes it: a class that the model's last client lacks has no prototype and
    is excluded from the contrast. Prototypes are class means, where the paper clusters; its feature augmentation by
    attention to prototypes is not implemented, because its text is not available.
    """

    name = "pgct"
    title = "models exchanged at random, with a contrast to the sender's prototypes"
    paper = "Liu et al., ICME 2023"
    Params = PGCTParams
    params: PGCTParams

    @sends(weights=MODEL, prototypes="C d", present="C:bool")
    def share_model(self, client: Client) -> Payload:
        """The model, the class prototypes (FedCT eq. 1; C×d) and which classes the client has (C)."""
        h, labels = client.predict_private("features"), client.private.labels
        u, counts = class_prototypes(h, labels, client.model.num_classes)
        return Payload(self.upload(client), prototypes=u, present=counts > 0)

    @property
    def dims(self) -> dict[str, int]:
        return {"d": self.architecture.feature_dim}

    def cross_train(self, client: Client, received: Payload | None) -> None:
        if received is not None:
            client.memory.update(self.prototypes(received))
        super().cross_train(client, received)

    def prototypes(self, received: Payload) -> dict[str, Tensor]:
        """The prototypes for cross-training (C×d) and which classes have one (C)."""
        return {"prototypes": received["prototypes"], "known": received["present"]}

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        u, known = client.stored_tensor("prototypes"), client.stored_tensor("known")
        contrast = prototype_contrast(h, batch.labels, u, self.params.tau2, known)
        return client.cross_entropy(z, batch.labels) + self.params.kappa * contrast
