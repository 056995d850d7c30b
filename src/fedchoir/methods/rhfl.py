"""RHFL. Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedchoir.core.actions import Exchange, Received, Round, Script
from fedchoir.core.aggregation import Aggregator, gather
from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.losses import pool_predictions, pooled_kl, sce
from fedchoir.methods.base import PublicMethod
from fedchoir.payload import Payload, sends


class RHFLParams(Settings):
    ce_weight: float = Field(0.1, ge=0, description="α: weight of cross-entropy in the local loss")
    rce_weight: float = Field(1.0, ge=0, description="β: weight of reverse cross-entropy in the local loss")
    eta: float = Field(
        0.5, ge=0, description="η: how much confidence in a client changes its weight; 0 switches it off"
    )
    use_sce: bool = Field(True, description="symmetric cross-entropy at home, or plain cross-entropy")


class RHFL(PublicMethod):
    """Public phase: Σ_{k≠i} w_k KL(σ(z_k) ‖ σ(z_i)). Local phase: symmetric cross-entropy, as labels may be wrong.

    Confidence in a client is the drop of its local loss since the last round over what is left of it (SCE on its
    private data in eval mode); weights are the softmax of η times its share. Shares are taken of the sum of absolute
    values, as the paper's plain sum may be zero or negative; where all losses fall the two are the same.

    A client hears two weighted sums over the others (see `pooled_kl`), not every prediction: the loss and its
    gradient are those of the paper, for B·(C + 1) numbers down whatever the number of clients.
    """

    name = "rhfl"
    title = "noise-tolerant loss, confidence-weighted KL to each other client"
    paper = "Fang and Ye, CVPR 2022"
    Params = RHFLParams
    params: RHFLParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "it weighs each client's answers by its loss"

    def round(self, r: Round) -> Script:
        losses = yield Exchange(self.admit, aggregator=gather)
        self.server["confidence"] = self.confidence({k: aggregated.scalars["loss"] for k, aggregated in losses.items()})
        yield from super().round(r)

    @sends(loss="scalar")
    def admit(self, client: Client) -> Payload:
        """The loss on the private data, as the round begins."""
        return Payload(scalars={"loss": float(self.noise_tolerant(client.predict_private(), client.private.labels))})

    def confidence(self, losses: dict[int, float]) -> Tensor:
        """w (K), from how far each loss has fallen; 0 for who did not say. Without a last round all count the same."""
        everyone = len(self.task.clients)
        unknown = torch.full((everyone,), float("nan"), dtype=torch.float64)
        now, before = unknown.clone(), self.server.get("loss", unknown)
        for k, loss in losses.items():
            now[k] = loss
        self.server["loss"] = torch.where(now.isnan(), before, now)
        weights = torch.zeros(everyone, dtype=torch.float64)
        here = sorted(losses)
        if before[here].isnan().all():
            weights[here] = 1 / max(len(here) - 1, 1)
            return weights
        fall = ((before[here] - now[here]) / now[here]).nan_to_num(0.0)
        weights[here] = torch.softmax(self.params.eta * fall / fall.abs().sum().clamp_min(1e-12), dim=0)
        return weights

    def aggregator(self) -> Aggregator:
        return gather()

    def consensus(self, aggregated: list[dict[int, Payload]]) -> Received:
        return [self.of_the_others(answers) for answers in aggregated]

    def of_the_others(self, answers: dict[int, Payload]) -> dict[int, Payload]:
        """For each client the weighted predictions of the others; a client without an answer hears all that came."""
        logits = torch.stack([p["logits"] for p in answers.values()])
        confidence = self.server["confidence"].to(logits)
        speakers, listeners = torch.tensor(list(answers)), torch.arange(len(confidence))
        weights = confidence[speakers] * (listeners.unsqueeze(1) != speakers).to(logits)
        pool, negentropy = pool_predictions(logits, weights.unsqueeze(2).expand(-1, -1, logits.shape[1]))
        return {k: Payload(pool=pool[k], negentropy=negentropy[k]) for k in range(len(confidence))}

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return pooled_kl(client.logits(batch.images), batch["pool"], batch["negentropy"])

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        if not self.params.use_sce:
            return self.supervised_loss(client, batch)
        return self.noise_tolerant(client.logits(batch.images), batch.labels)

    def noise_tolerant(self, logits: Tensor, labels: Tensor) -> Tensor:
        return sce(logits, labels, self.params.ce_weight, self.params.rce_weight)
