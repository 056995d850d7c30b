"""FedCT. Qi et al., Cross-Training with Multi-View Knowledge Fusion for Heterogenous Federated Learning, 2024."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.losses import apcl, fuse_prototypes, mfa, mixed_features
from fedchoir.methods.api import Batch, Client, Field
from fedchoir.methods.fedexg import Models
from fedchoir.methods.pgct import PGCT, PGCTParams
from fedchoir.models import Model
from fedchoir.payload import Payload


class FedCTParams(PGCTParams):
    broadcast: Literal["consistency", "inconsistency", "random"] = Field(
        "consistency",
        description="targets of models: smallest (eq. 4) or largest (eq. 5) loss on their prototypes, or random",
    )
    lambda_fuse: float = Field(0.5, ge=0, le=1, description="λ_fuse of eq. 6: share of the global prototypes")
    lambda_hy: float = Field(0.1, ge=0, description="λ_hy of eq. 7: extrapolation from the class prototype")
    lambda_mix: float = Field(0.5, ge=0, le=1, description="λ_mix of eq. 8-10: share of the first sample")
    kappa: float = Field(1.0, ge=0, description="κ of eq. 13: weight of APCL")
    eta: float = Field(0.1, ge=0, description="η of eq. 13: weight of the loss on mixed features")
    use_apcl: bool = Field(True, description="multi-view representation learning (APCL) on/off (Table III)")
    use_mfa: bool = Field(True, description="mixup-based feature augmentation (MFA) on/off (Table III)")
    mix_with: Literal["samples", "prototypes", "both"] = Field(
        "both", description="partners of a sample's features: samples (eq. 8), prototypes, or both as in the text"
    )


class FedCT(PGCT):
    """Cross-training: models are sent to clients with consistent knowledge and trained there towards prototypes fused
    from the global view and the sender's.

    A class that the sender lacks has the global prototype; a class without any client is excluded. Prototypes are
    computed anew for every exchange.
    """

    name = "fedct"
    title = "models exchanged by consistency of their knowledge, cross-trained with fused prototypes"
    paper = "Qi et al., 2024"
    Params = FedCTParams
    params: FedCTParams

    # -- phase II: knowledge broadcasting, on the server -----------------------------------------------------------

    def broadcast(self, models: Models, round_index: int, number: int) -> Models:
        """Another client's model and prototypes for every client; the global prototypes for all (eq. 2)."""
        u, have = stacked(models)
        count = have.sum(dim=0)
        u_g = (u * have.unsqueeze(2)).sum(dim=0) / count.clamp_min(1).unsqueeze(1)
        sent = super().broadcast(models, round_index, number)
        return {k: Payload(p, scalars=p.scalars, global_prototypes=u_g, known=count > 0) for k, p in sent.items()}

    def costs(self, models: Models, round_index: int, number: int) -> Tensor:
        if self.params.broadcast == "random":
            return super().costs(models, round_index, number)
        sign = 1 if self.params.broadcast == "consistency" else -1
        return sign * self.consistency(models)

    @torch.no_grad()
    def consistency(self, models: Models) -> Tensor:
        """The matrix of eq. 3 (N×N): v_ij is the mean loss of the i-th client's classifier on the j-th's prototypes."""
        u, have = stacked(models)
        n, classes = have.shape
        labels = torch.arange(classes, device=u.device).repeat(n)
        classifier = Classifier(self.architecture).to(u.device)
        rows = []
        for payload in models.values():
            weights = {f"model.{name}": t for name, t in payload.under("weights").items()}
            z = functional_call(classifier, weights, (u.flatten(0, 1),))
            losses = cross_entropy(z, labels, reduction="none").view(n, classes).masked_fill(~have, 0.0)
            rows.append(losses.sum(dim=1) / have.sum(dim=1).clamp_min(1))
        return torch.stack(rows)

    # -- phase III: multi-view knowledge-guided cross-training -----------------------------------------------------

    def prototypes(self, received: Payload) -> dict[str, Tensor]:
        """Fused prototypes (eq. 6; C×d), which classes have one (C), and all classes, those with one first (C)."""
        u_g, u_l, known = received["global_prototypes"], received["prototypes"], received["known"]
        fused = fuse_prototypes(u_g, u_l, received["present"], self.params.lambda_fuse)
        return {"prototypes": fused, "known": known, "order": known.int().argsort(descending=True, stable=True)}

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 13."""
        p = self.params
        h, z = client.features_and_logits(batch.inputs)
        u, known = client.stored_tensor("prototypes"), client.stored_tensor("known")
        loss = client.cross_entropy(z, batch.labels)
        if p.use_apcl:
            loss = loss + p.kappa * apcl(h, batch.labels, u, p.tau2, p.lambda_hy, known)
        if p.use_mfa:
            loss = loss + p.eta * self.mixing_loss(client, h, batch.labels, u, known)
        return loss

    def mixing_loss(self, client: Client, h: Tensor, labels: Tensor, u: Tensor, known: Tensor) -> Tensor:
        """eq. 8-10. Batches are shuffled, so the next sample is a random partner, and so is the i-th prototype."""
        losses = []
        if self.params.mix_with != "prototypes":
            losses.append(self.mixed(client, h, labels, h.roll(1, 0), labels.roll(1, 0)))
        if self.params.mix_with != "samples":
            index = torch.arange(len(h), device=h.device) % known.sum().clamp_min(1)
            partner = client.stored_tensor("order")[index]
            losses.append(self.mixed(client, h, labels, u[partner], partner))
        return torch.stack(losses).mean()

    def mixed(self, client: Client, f_a: Tensor, y_a: Tensor, f_b: Tensor, y_b: Tensor) -> Tensor:
        weight = self.params.lambda_mix
        return mfa(client.classify(mixed_features(f_a, f_b, weight)), y_a, y_b, weight)


class Classifier(nn.Module):
    """A model's head alone: features → logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, h: Tensor) -> Tensor:
        return self.model.classify(h)


def stacked(models: Models) -> tuple[Tensor, ...]:
    """The prototypes of N clients (N×C×d) and which of them exist (N×C)."""
    return tuple(torch.stack([p[name] for p in models.values()]) for name in ("prototypes", "present"))
