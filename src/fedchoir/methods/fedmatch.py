"""FedMatch. Jeong et al., Federated Semi-Supervised Learning with Inter-Client Consistency and Disjoint Learning,
ICLR 2021."""

import torch
from torch import Tensor

from fedchoir.losses import pool_predictions, pooled_kl
from fedchoir.methods.api import Aggregator, Batch, Client, Field, PublicMethod, Received, Settings, gather
from fedchoir.payload import Payload


class FedMatchParams(Settings):
    helpers: int = Field(2, ge=1, description="H: helpers of each client: those with the most similar predictions")
    confidence: float = Field(0.75, ge=0, le=1, description="smallest top probability with which a helper counts")
    consistency: float = Field(1.0, ge=0, description="weight of the inter-client consistency")


class FedMatch(PublicMethod):
    """Public phase: consistency with helpers, 1/H Σ_j KL(p_j ‖ p) over the samples on which helper j is confident.

    Only the inter-client consistency is implemented, because it works across architectures; the compared papers do the
    same. Helpers are the clients with the nearest predictions on the batch. Disjoint learning (separate weights for
    labeled and unlabeled data) is left out for equal architectures, too.
    """

    name = "fedmatch"
    title = "consistency with the confident predictions of the most similar clients"
    paper = "Jeong et al., ICLR 2021"
    Params = FedMatchParams
    params: FedMatchParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "it compares clients' logits with each other"

    def aggregator(self) -> Aggregator:
        return gather()

    def consensus(self, aggregated: list[dict[int, Payload]]) -> Received:
        return [self.pool_of_helpers(payloads) for payloads in aggregated]

    def pool_of_helpers(self, payloads: dict[int, Payload]) -> dict[int, Payload]:
        """For every client the predictions of its helpers; zeros for a client that sent none of its own."""
        logits = torch.stack([p["logits"] for p in payloads.values()])
        probabilities = logits.softmax(dim=2)
        confident = (probabilities.amax(dim=2) >= self.params.confidence).to(logits)
        pool, negentropy = pool_predictions(logits, self.nearest(probabilities).unsqueeze(2) * confident)
        received = {k: Payload(pool=pool[j], negentropy=negentropy[j]) for j, k in enumerate(payloads)}
        zeros = Payload(pool=torch.zeros_like(pool[0]), negentropy=torch.zeros_like(negentropy[0]))
        return {k: received.get(k, zeros) for k in range(len(self.spec.clients))}

    def nearest(self, probabilities: Tensor) -> Tensor:
        """Weights of helpers (N×N): 1/H at the H others with the nearest predictions (N×B×C), else 0."""
        n = len(probabilities)
        count = min(self.params.helpers, n - 1)
        distance = torch.cdist(probabilities.flatten(1), probabilities.flatten(1))
        distance.fill_diagonal_(float("inf"))
        chosen = distance.topk(count, largest=False).indices
        return torch.zeros_like(distance).scatter(1, chosen, 1 / max(count, 1))

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        z = client.logits(batch.inputs)
        return self.params.consistency * pooled_kl(z, batch["pool"], batch["negentropy"])
