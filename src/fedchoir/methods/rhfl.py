"""RHFL. Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022."""

from typing import Any

import torch
from torch import Tensor

from fedchoir.losses import pool_predictions, pooled_kl, sce
from fedchoir.methods.api import (
    Aggregator,
    Batch,
    Client,
    Exchange,
    Field,
    PublicMethod,
    Received,
    Round,
    Script,
    Settings,
    gather,
)
from fedchoir.payload import Payload, sends


class RHFLParams(Settings):
    ce_weight: float = Field(0.1, ge=0, description="α: weight of cross-entropy in the local loss")
    rce_weight: float = Field(1.0, ge=0, description="β: weight of reverse cross-entropy in the local loss")
    eta: float = Field(0.5, ge=0, description="η: effect of a client's confidence on its weight; 0: none")
    use_sce: bool = Field(True, description="symmetric cross-entropy in the local phase, or plain cross-entropy")


class RHFL(PublicMethod):
    """Public phase: Σ_{k≠i} w_k KL(σ(z_k) ‖ σ(z_i)). Local phase: symmetric cross-entropy, robust to label noise.

    A client's confidence is the relative drop of its local loss (SCE on its private data in eval mode) since the last
    round; weights are the softmax of η times its share. Shares are of the sum of absolute values, because the paper's
    plain sum may be zero or negative; where all losses fall the two are equal.

    A client receives two weighted sums over the others (see `pooled_kl`) instead of every prediction: loss and gradient
    are the paper's, for a payload of B·(C + 1) numbers.
    """

    name = "rhfl"
    title = "noise-robust loss, confidence-weighted KL to each other client"
    paper = "Fang and Ye, CVPR 2022"
    Params = RHFLParams
    params: RHFLParams
    streams = {"share_loss": "admit"}  # frozen stream name

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "it weights each client's logits by its loss"

    def round(self, r: Round) -> Script:
        losses = yield Exchange(self.share_loss, aggregator=gather)
        self.server["confidence"] = self.confidence({k: payload.scalars["loss"] for k, payload in losses.items()})
        yield from super().round(r)

    @sends(loss="scalar")
    def share_loss(self, client: Client) -> Payload:
        """The loss on the private data at the start of the round."""
        return Payload(scalars={"loss": float(self.sce(client.predict_private(), client.private.labels))})

    def confidence(self, losses: dict[int, float]) -> Tensor:
        """w (K) from the drop of each loss; 0 for absent clients. In the first round all weights are equal."""
        count = len(self.spec.clients)
        unknown = torch.full((count,), float("nan"), dtype=torch.float64)
        now, before = unknown.clone(), self.server.get("loss", unknown)
        for k, loss in losses.items():
            now[k] = loss
        self.server["loss"] = torch.where(now.isnan(), before, now)
        weights = torch.zeros(count, dtype=torch.float64)
        present = sorted(losses)
        if before[present].isnan().all():
            weights[present] = 1 / max(len(present) - 1, 1)
            return weights
        drop = ((before[present] - now[present]) / now[present]).nan_to_num(0.0)
        weights[present] = torch.softmax(self.params.eta * drop / drop.abs().sum().clamp_min(1e-12), dim=0)
        return weights

    def aggregator(self) -> Aggregator:
        return gather()

    def consensus(self, aggregated: list[dict[int, Payload]]) -> Received:
        return [self.pool_of_others(payloads) for payloads in aggregated]

    def pool_of_others(self, payloads: dict[int, Payload]) -> dict[int, Payload]:
        """For every client the weighted predictions of the other clients that sent some."""
        logits = torch.stack([p["logits"] for p in payloads.values()])
        confidence = self.server["confidence"].to(logits)
        teachers, students = torch.tensor(list(payloads)), torch.arange(len(confidence))
        weights = confidence[teachers] * (students.unsqueeze(1) != teachers).to(logits)
        pool, negentropy = pool_predictions(logits, weights.unsqueeze(2).expand(-1, -1, logits.shape[1]))
        return {k: Payload(pool=pool[k], negentropy=negentropy[k]) for k in range(len(confidence))}

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return pooled_kl(client.logits(batch.inputs), batch["pool"], batch["negentropy"])

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        if not self.params.use_sce:
            return self.supervised_loss(client, batch)
        return self.sce(client.logits(batch.inputs), batch.labels)

    @classmethod
    def class_weights_obstacle(cls, params: Any) -> str:
        return "its symmetric cross-entropy has none; set use_sce to false" if params.use_sce else ""

    def sce(self, logits: Tensor, labels: Tensor) -> Tensor:
        return sce(logits, labels, self.params.ce_weight, self.params.rce_weight)
