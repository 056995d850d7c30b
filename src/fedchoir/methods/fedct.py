"""FedCT. Qi et al., Cross-Training with Multi-View Knowledge Fusion for Heterogenous Federated Learning, 2024."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import apcl, fuse_prototypes, mfa, mixed_features
from fedchoir.methods.api import Batch, Client, Field
from fedchoir.methods.fedct_broadcast import KnowledgeBroadcast, KnowledgeBroadcastParams
from fedchoir.payload import Payload


class FedCTParams(KnowledgeBroadcastParams):
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


class FedCT(KnowledgeBroadcast):
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
