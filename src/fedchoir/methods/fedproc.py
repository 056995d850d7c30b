"""FedProc. Mu et al., FedProc: Prototypical Contrastive Federated Learning on Non-IID Data, FGCS 2023."""

from torch import Tensor

from fedchoir.losses import class_prototypes, prototype_contrast
from fedchoir.methods.api import Aggregator, Batch, ByName, Client, Field, Settings, mean
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import MODEL, Payload, sends


class FedProcParams(Settings):
    alpha: float | None = Field(
        None, ge=0, le=1, description="α: weight of the contrast; default: decreases from 1 to 0 over the rounds"
    )
    temperature: float = Field(0.5, gt=0, description="τ: temperature of the contrast")


class FedProc(FedAvg):
    """FedAvg whose local loss is α·contrast + (1 − α)·CE; the contrast draws features to global class prototypes.

    A global prototype is the unweighted mean over the clients that have the class. A class without any client is
    excluded from the contrast. The first round has no prototypes, so its loss is cross-entropy alone.
    """

    name = "fedproc"
    title = "FedAvg with a contrast to global class prototypes"
    paper = "Mu et al., FGCS 2023"
    Params = FedProcParams
    params: FedProcParams

    def weighting(self) -> Aggregator:
        return ByName({"weights": super().weighting, "prototypes": mean, "owned": mean})

    @property
    def dims(self) -> dict[str, int]:
        return {"d": self.architecture.feature_dim}

    @sends(weights=MODEL, prototypes="C d", owned="C")
    def upload(self, client: Client) -> Payload:
        """The weights, the prototypes (C×d, zeros for a missing class) and which classes the client has (C)."""
        classes = client.model.num_classes
        prototypes, counts = class_prototypes(client.predict_private("features"), client.private.labels, classes)
        return Payload({**super().upload(client)}, prototypes=prototypes, owned=(counts > 0).float())

    def download(self, client: Client, received: Payload) -> None:
        super().download(client, received)
        # (mean over all clients) / (share of clients that have the class) = mean over those that have it
        share = received["owned"]
        client.memory["prototypes"] = received["prototypes"] / share.clamp_min(1e-12).unsqueeze(1)
        client.memory["present"] = share > 0

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss if "prototypes" in client.memory else self.supervised_loss)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        u, present = client.stored_tensor("prototypes"), client.stored_tensor("present")
        contrast = prototype_contrast(h, batch.labels, u, self.params.temperature, present)
        alpha = self.alpha(client)
        return alpha * contrast + (1 - alpha) * client.cross_entropy(z, batch.labels)

    def alpha(self, client: Client) -> float:
        if self.params.alpha is not None:
            return self.params.alpha
        return 1 - client.round / client.rounds
