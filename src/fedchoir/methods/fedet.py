"""Fed-ET. Cho et al., Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning,
IJCAI 2022."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.losses import confident_consensus, diversity_kl
from fedchoir.methods.api import Aggregator, Batch, Client, Field, PublicMethod, Received, Settings, gather
from fedchoir.payload import Payload


class FedETParams(Settings):
    diversity: float = Field(0.05, ge=0, description="λ: weight of the divergence from the clients that disagree")
    temperature: float = Field(1.0, gt=0, description="T: temperature of that divergence")


class FedET(PublicMethod):
    """Public phase: CE to the label of the confidence-weighted consensus, and KL to the clients that disagree with it.

    For each public sample, with the clients' logits z_k and α_k = Var(z_k) / Σ_l Var(z_l), variances over classes:

        s = Σ_k α_k z_k,   y = argmax s
        D = {k: argmax z_k ≠ y},   d = Σ_{k∈D} α′_k z_k  with α′ the same weights over D alone
        L_i = CE(z_i, y) + λ·KL(σ(d / T) ‖ σ(z_i / T)),   without the second term where D is empty

    This is the paper's consensus. Its setting is left out: there the server has a larger model, which alone is trained
    on the consensus, clients send weights, models of one architecture are averaged, and the server's representation
    layers go into the clients' models. Here every client trains its own model on the consensus and sends logits. Equal
    architectures are averaged as in all methods on public data (option ``average``).
    """

    name = "fedet"
    title = "consensus weighted by the variance of logits, with a term for the clients that disagree"
    paper = "Cho et al., IJCAI 2022"
    Params = FedETParams
    supports_dp = True
    params: FedETParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "it compares each client's prediction with the consensus"

    def aggregator(self) -> Aggregator:
        return gather()

    def consensus(self, aggregated: list[dict[int, Payload]]) -> Received:
        return [self.ensemble(torch.stack([p["logits"] for p in payloads.values()])) for payloads in aggregated]

    def ensemble(self, logits: Tensor) -> Payload:
        """y (B), d (B×C) and whether D is not empty (B), from the logits of N clients, N×B×C."""
        label = confident_consensus(logits).argmax(dim=1)
        disagree = logits.argmax(dim=2) != label
        return Payload(
            label=label, diverse=confident_consensus(logits, disagree), exists=disagree.any(dim=0).to(logits.dtype)
        )

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        z, p = client.logits(batch.inputs), self.params
        divergence = diversity_kl(z, batch["diverse"], batch["exists"], p.temperature)
        return cross_entropy(z, batch["label"]) + p.diversity * divergence
