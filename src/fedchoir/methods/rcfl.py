"""RCFL. Gudur and Perepu, Resource-Constrained Federated Learning with Heterogeneous Labels and Models for Human
Activity Recognition, 2020."""

import torch
from torch import Tensor

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client, PublicBatch, PublicMethod, Received, Round, Script, Step
from fedchoir.payload import Payload, sends

MIN_WEIGHT = 1e-6  # a label whose owners all have accuracy 0 still has a consensus


class RCFL(PublicMethod):
    """Public phase: KL to a consensus that is formed per label over the clients that own the label.

    Our reading of the paper's weighted update: in the consensus on a label an owner's weight is its accuracy on its own
    private samples, measured once at the start of the round in eval mode. The model distillation update is
    KL(σ(z̄) ‖ σ(z)) at temperature 1. A label without an owner in the round is excluded from both softmaxes.
    """

    name = "rcfl"
    title = "consensus per label over the clients that own it"
    paper = "Gudur and Perepu, 2020"
    with_private_statistics = frozenset({"scores", "weights"})

    def round(self, r: Round) -> Script:
        yield Step(self.compute_weights)
        yield from super().round(r)

    def compute_weights(self, client: Client) -> None:
        """The client's weight for each label (C): its accuracy where it owns the label, else 0."""
        hits = client.predict_private().argmax(dim=1) == client.private.labels
        accuracy = hits.float().mean().clamp_min(MIN_WEIGHT)
        client.memory["weights"] = accuracy * (client.class_counts() > 0)

    @sends(scores="B C", weights="C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        """Weighted logits and the weights: the ratio of their means over clients is the weighted mean."""
        _, z = client.public_outputs(batch)
        weights = client.stored_tensor("weights")
        return Payload(scores=z * weights, weights=weights)

    def consensus(self, aggregated: list[Payload]) -> Received:
        return [
            Payload(logits=p["scores"] / p["weights"].clamp_min(MIN_WEIGHT**2), owned=p["weights"] > 0)
            for p in aggregated
        ]

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        z, owned = client.logits(batch.inputs), batch["owned"]
        lowest = torch.finfo(z.dtype).min
        return kd(z.masked_fill(~owned, lowest), batch["logits"].masked_fill(~owned, lowest), temperature=1.0)
