"""FedMatch. Jeong et al., Federated Semi-Supervised Learning with Inter-Client Consistency and Disjoint Learning,
ICLR 2021."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import agreed_labels, pool_predictions, pooled_kl, soft_cross_entropy
from fedchoir.methods.api import Aggregator, Batch, Client, Field, PublicBatch, PublicMethod, Received, Settings, gather
from fedchoir.payload import Payload


class FedMatchParams(Settings):
    helpers: int = Field(2, ge=1, description="H: helpers of each client: those with the most similar predictions")
    confidence: float = Field(0.75, ge=0, le=1, description="smallest top probability of a prediction that counts")
    gate: Literal["own", "helper"] = Field(
        "own", description="consistency on the samples of which the client itself is confident, or the helper"
    )
    consistency: float = Field(1.0, ge=0, description="weight of the inter-client consistency")
    agreement: float = Field(1.0, ge=0, description="weight of the pseudo labels that client and helpers agree on")


class FedMatch(PublicMethod):
    """Public phase: on the samples of which the client is confident, consistency with its helpers,
    1/H Σ_j KL(p_j ‖ p), and CE of a strongly augmented copy to the class with the most votes of client and helpers.

    Helpers are the clients with the nearest predictions on the batch; the paper finds them by predictions on noise.
    Disjoint learning (separate weights for labeled and unlabeled data) is left out: it needs one architecture.
    Without augmentation of public samples the copy is not augmented either.
    """

    name = "fedmatch"
    title = "consistency and agreement with the most similar clients where a client is confident"
    paper = "Jeong et al., ICLR 2021"
    Params = FedMatchParams
    params: FedMatchParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "it compares clients' logits with each other"

    def aggregator(self) -> Aggregator:
        return gather()

    def consensus(self, aggregated: list[dict[int, Payload]]) -> Received:
        return [self.of_helpers(payloads) for payloads in aggregated]

    def of_helpers(self, payloads: dict[int, Payload]) -> dict[int, Payload]:
        """For every client the predictions and votes of its helpers; zeros for a client that sent none of its own."""
        logits = torch.stack([p["logits"] for p in payloads.values()])
        probabilities = logits.softmax(dim=2)
        nearest = self.nearest(probabilities)
        counted = torch.ones_like(logits[:, :, 0])
        if self.params.gate == "helper":
            counted = (probabilities.amax(dim=2) >= self.params.confidence).to(logits)
        pool, negentropy = pool_predictions(logits, nearest.unsqueeze(2) * counted)
        fields = {"pool": pool, "negentropy": negentropy}
        if self.params.agreement:
            predicted = torch.nn.functional.one_hot(logits.argmax(dim=2), logits.shape[2]).to(logits)
            fields["votes"] = torch.einsum("jn,nbc->jbc", (nearest > 0).to(logits), predicted)
        received = {k: Payload({n: t[j] for n, t in fields.items()}) for j, k in enumerate(payloads)}
        zeros = Payload({n: torch.zeros_like(t[0]) for n, t in fields.items()})
        return {k: received.get(k, zeros) for k in range(len(self.spec.clients))}

    def nearest(self, probabilities: Tensor) -> Tensor:
        """Weights of helpers (N×N): 1/H at the H others with the nearest predictions (N×B×C), else 0."""
        n = len(probabilities)
        count = min(self.params.helpers, n - 1)
        distance = torch.cdist(probabilities.flatten(1), probabilities.flatten(1))
        distance.fill_diagonal_(float("inf"))
        chosen = distance.topk(count, largest=False).indices
        return torch.zeros_like(distance).scatter(1, chosen, 1 / max(count, 1))

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        views = {}
        if self.params.agreement:
            augment: Literal["none", "strong"] = "none" if self.params.public_augment == "none" else "strong"
            views["strong"] = client.public_samples(batch, augment=augment)
        client.public_step(batch, self.public_loss, **consensus, **views)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        p, z = self.params, client.logits(batch.inputs)
        confident = (z.detach().softmax(dim=1).amax(dim=1) >= p.confidence).to(z)
        counted = confident if p.gate == "own" else None  # the pool of confident helpers leaves the others out
        loss = p.consistency * pooled_kl(z, batch["pool"], batch["negentropy"], counted)
        if p.agreement:
            labels = agreed_labels(z, batch["votes"])
            loss = loss + p.agreement * soft_cross_entropy(client.logits(batch["strong"]), labels, confident)
        return loss
