"""FedCT. Qi et al., Cross-Training with Multi-View Knowledge Fusion for Heterogenous Federated Learning, 2024."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.losses import apcl, fuse_prototypes, mfa, mixed_features
from fedchoir.methods.fedexg import Models
from fedchoir.methods.pgct import PGCT, PGCTParams
from fedchoir.payload import Payload


class FedCTParams(PGCTParams):
    broadcast: Literal["consistency", "inconsistency", "random"] = Field(
        "consistency",
        description="models go where their classifiers fit the prototypes best (eq. 4), worst (eq. 5), or anywhere",
    )
    lambda_fuse: float = Field(0.5, ge=0, le=1, description="λ_fuse of eq. 6: share of the global prototypes")
    lambda_hy: float = Field(0.1, ge=0, description="λ_hy of eq. 7: extrapolation away from the own prototype")
    lambda_mix: float = Field(0.5, ge=0, le=1, description="λ_mix of eq. 8-10: share of the first sample")
    kappa: float = Field(1.0, ge=0, description="κ of eq. 13: weight of APCL")
    eta: float = Field(0.1, ge=0, description="η of eq. 13: weight of the loss on mixed features")
    use_apcl: bool = Field(True, description="multi-view representation learning (APCL) on/off (Table III)")
    use_mfa: bool = Field(True, description="mixup-based feature augmentation (MFA) on/off (Table III)")
    mix_with: Literal["samples", "prototypes", "both"] = Field(
        "both", description="what a sample's features are mixed with: eq. 8 says samples, the text prototypes as well"
    )


class FedCT(PGCT):
    """Cross-training: models go to clients whose knowledge is consistent with theirs, and are trained there towards
    prototypes fused from the global view and the one that they come with.

    A class that the model's last client lacks has the global prototype; a class that nobody has is left out. With
    several exchanges in a round, prototypes are made anew for each.
    """

    name = "fedct"
    title = "models change places by the consistency of their knowledge, guided by fused prototypes"
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
        """The matrix of eq. 3 (N×N): v_ij is the mean loss of the i-th client's classifier on the j-th's prototypes.

        The server applies a classifier by the shared architecture, whose part ``head`` it is.
        """
        u, have = stacked(models)
        n, classes = have.shape
        labels = torch.arange(classes, device=u.device).repeat(n)
        head = self.architecture.head.to(u.device)
        rows = []
        for aggregated in models.values():
            weights = {
                m.removeprefix("head."): t for m, t in aggregated.under("weights").items() if m.startswith("head.")
            }
            z = functional_call(head, weights, (u.flatten(0, 1),))
            losses = cross_entropy(z, labels, reduction="none").view(n, classes).masked_fill(~have, 0.0)
            rows.append(losses.sum(dim=1) / have.sum(dim=1).clamp_min(1))
        return torch.stack(rows)

    # -- phase III: multi-view knowledge-guided cross-training -----------------------------------------------------

    def guides(self, received: Payload) -> dict[str, Tensor]:
        """Fused prototypes (eq. 6; C×d), which classes have one (C), and the classes with those first (C)."""
        u_g, u_l, known = received["global_prototypes"], received["prototypes"], received["known"]
        fused = fuse_prototypes(u_g, u_l, received["present"], self.params.lambda_fuse)
        return {"prototypes": fused, "known": known, "order": known.int().argsort(descending=True, stable=True)}

    def cross_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 13."""
        p = self.params
        h, z = client.features_and_logits(batch.images)
        u, known = client.stored_tensor("prototypes"), client.stored_tensor("known")
        loss = cross_entropy(z, batch.labels)
        if p.use_apcl:
            loss = loss + p.kappa * apcl(h, batch.labels, u, p.tau2, p.lambda_hy, known)
        if p.use_mfa:
            loss = loss + p.eta * self.mixing_loss(client, h, batch.labels, u, known)
        return loss

    def mixing_loss(self, client: Client, h: Tensor, labels: Tensor, u: Tensor, known: Tensor) -> Tensor:
        """eq. 8-10. The order of a batch is random, so a sample's neighbour is a random partner; so is the prototype
        at its place when those that there are take turns."""
        parts = []
        if self.params.mix_with != "prototypes":
            parts.append(self.mixed(client, h, labels, h.roll(1, 0), labels.roll(1, 0)))
        if self.params.mix_with != "samples":
            turn = torch.arange(len(h), device=h.device) % known.sum().clamp_min(1)
            partner = client.stored_tensor("order")[turn]
            parts.append(self.mixed(client, h, labels, u[partner], partner))
        return torch.stack(parts).mean()

    def mixed(self, client: Client, f_a: Tensor, y_a: Tensor, f_b: Tensor, y_b: Tensor) -> Tensor:
        weight = self.params.lambda_mix
        return mfa(client.classify(mixed_features(f_a, f_b, weight)), y_a, y_b, weight)


def stacked(models: Models) -> tuple[Tensor, Tensor]:
    """The prototypes of N clients (N×C×d) and which of them there are (N×C), clients in order."""
    aggregated = models.values()
    return torch.stack([p["prototypes"] for p in aggregated]), torch.stack([p["present"] for p in aggregated])
