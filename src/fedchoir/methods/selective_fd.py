"""Selective-FD. Shao, Wu and Zhang, Selective Knowledge Sharing for Privacy-Preserving Federated Distillation without a
Good Teacher, Nature Communications 2024."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import soft_cross_entropy
from fedchoir.losses._common import one_hot
from fedchoir.methods.api import (
    Batch,
    Client,
    Field,
    PublicBatch,
    PublicMethod,
    Received,
    Round,
    Script,
    Settings,
    Step,
)
from fedchoir.methods.density_ratio import density_ratio, fit_density_ratio, median_distance
from fedchoir.payload import Payload, sends


class SelectiveFDParams(Settings):
    client_quantile: float = Field(
        0.25,
        ge=0,
        le=1,
        description="client-side selector: a public sample is left out if its density ratio is not above this quantile "
        "of the client's own held-out samples",
    )
    server_threshold: float = Field(
        1.0,
        ge=0,
        le=2,
        description="server-side selector: largest L1 distance between the ensemble's prediction and its hard label, "
        "2·(1 − top probability); 2: off",
    )
    labels: Literal["soft", "hard"] = Field("soft", description="ensemble predictions as they are, or as hard labels")
    selector_samples: int = Field(250, ge=1, description="most private, and number of auxiliary, samples of a selector")


class SelectiveFD(PublicMethod):
    """Public phase: cross-entropy to the ensemble of the clients to which a sample is familiar, where it is confident.

    Client-side selector: with the density ratio r_k of client k's samples to uniform ones and the quantile τ_k of r_k
    on samples of its own that were held out, m_k(x) = 1 if r_k(x) > τ_k, else 0. Then, on a public sample,

        p̄ = Σ_k m_k σ(z_k) / Σ_k m_k,   L_i = CE(p̄, z_i)  averaged over the samples that are selected

    Server-side selector: a sample counts if some m_k = 1 and ‖p̄ − onehot(argmax p̄)‖₁ ≤ τ_server.

    As in the paper, KuLSIF estimates the ratio. Here it sees the features of the client's own model in eval mode, where
    the paper's demo sees pixels and recommends pretrained features: features exist for every modality. They change, so
    every round fits the selector anew, to half of the private samples (at most ``selector_samples``); the other half
    gives τ_k. The uniform samples fill the range of each feature, and the kernel's width is the median distance. The
    released demo multiplies by a matrix where KuLSIF has its inverse, and has no server-side selector.
    """

    name = "selective-fd"
    title = "distillation from the clients to which a public sample is familiar"
    paper = "Shao et al., Nature Communications 2024"
    Params = SelectiveFDParams
    with_private_statistics = frozenset({"probabilities", "selected"})
    params: SelectiveFDParams

    def round(self, r: Round) -> Script:
        yield Step(self.fit_selector)
        yield from super().round(r)

    @torch.no_grad()
    def fit_selector(self, client: Client) -> None:
        """Fit the density ratio to some private features; its threshold comes from others."""
        h = client.predict_private("features")
        order = torch.randperm(len(h), generator=client.generator("selector split")).to(h.device)
        count = min(max(len(h) // 2, 1), self.params.selector_samples)
        known, held_out = h[order[:count]], h[order[-count:]]
        low, high = known.amin(dim=0), known.amax(dim=0)
        uniform = torch.rand(
            self.params.selector_samples, h.shape[1], generator=client.generator("selector auxiliary")
        ).to(h.device)
        fitted = fit_density_ratio(known, low + (high - low) * uniform, median_distance(known))
        threshold = density_ratio(fitted, held_out).quantile(self.params.client_quantile)
        client.memory["selector"] = {**fitted, "threshold": threshold}

    @torch.no_grad()
    def selected(self, client: Client, batch: PublicBatch) -> Tensor:
        """m_k of a public batch, B: 1 for a sample that is familiar to the client, else 0."""
        client.model.eval()
        h, _ = client.trainer.forward(client, client.public_samples(batch))
        selector = client.stored_weights("selector")
        return (density_ratio(selector, h) > selector["threshold"]).to(h.dtype)

    @sends(probabilities="B C", selected="B")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        selected = self.selected(client, batch)
        _, z = client.public_outputs(batch)
        return Payload(probabilities=z.softmax(dim=1) * selected.unsqueeze(1), selected=selected)

    def consensus(self, aggregated: list[Payload]) -> Received:
        return [self.ensemble(mean["probabilities"], mean["selected"]) for mean in aggregated]

    def ensemble(self, probabilities: Tensor, share: Tensor) -> Payload:
        """p̄ (B×C) and which samples count (B), from the means of m_k σ(z_k) and of m_k over the clients."""
        somebody = share > 0.5 / len(self.spec.clients)  # secure sums are rounded
        mean = probabilities / share.where(somebody, torch.ones_like(share)).unsqueeze(1)
        top, label = mean.max(dim=1)
        counts = (somebody & (2 * (1 - top) <= self.params.server_threshold)).to(mean.dtype)
        chosen = mean if self.params.labels == "soft" else one_hot(label, mean.shape[1]).to(mean.dtype)
        return Payload(label=chosen, counts=counts)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return soft_cross_entropy(client.logits(batch.inputs), batch["label"], batch["counts"])
