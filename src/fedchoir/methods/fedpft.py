"""FedPFT. Beitollahi et al., Parametric Feature Transfer: One-shot Federated Learning with Foundation Models, 2024."""

import warnings
from collections.abc import Mapping
from typing import Literal

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fedchoir.methods.api import Client, Exchange, Field, Round, Script, Settings, gather
from fedchoir.methods.fedgh import FedGH, FedGHParams
from fedchoir.payload import Payload, sends
from fedchoir.utils.rng import derive, generator


class FedPFTParams(FedGHParams):
    tested_head: Literal["global", "own"] = Field(
        "global", description="head for evaluation: the global one of this round, or the client's own after training"
    )
    mixtures: int = Field(1, ge=1, description="K: Gaussians in the mixture of each class, with diagonal covariances")
    server_lr: float = Field(0.05, gt=0, description="learning rate of the global head at the server")
    server_epochs: int = Field(10, ge=0, description="passes over the sampled features in each round")
    server_batch: int = Field(64, ge=1, description="sampled features in a step of the server")


class FedPFT(FedGH):
    """Clients send a Gaussian mixture of their features for each class; the server trains one head on samples of them.

    With the features F_i^c of client i's samples of class c:

        (π, μ, σ²) ← EM on F_i^c,   F̃_i^c ~ Σ_k π_k N(μ_k, diag σ_k²),   g ← argmin Σ_{i,c} CE(g(F̃_i^c), c)

    with as many samples in all as the clients have private ones, in proportion to their numbers.

    The paper has one round and one pretrained, frozen extractor for all clients, so that features of different clients
    are comparable. For that, give all clients one pretrained model with a frozen trunk (``[train=head]``), feature_dim
    = 0 and one round. With extractors that clients train, features of different clients are unrelated at first: one
    head must separate the classes of all of them. Therefore rounds repeat, and clients train on from the global head,
    which draws features of a class together (as in FedGH). A class with a single sample is not sent: its mean would be
    that sample's features.
    """

    name = "fedpft"
    title = "one head trained at the server on samples of the clients' Gaussian mixtures of features"
    paper = "Beitollahi et al., 2024"
    Params = FedPFTParams
    params: FedPFTParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server samples from each client's Gaussians"

    @property
    def dims(self) -> dict[str, int]:
        return {**super().dims, "M": self.params.mixtures}

    def update_head(self, r: Round) -> Script:
        mixtures = yield Exchange(self.share_mixtures, aggregator=gather, dims=self.dims)
        self.server = dict(self.trained_head(r, *self.sampled(mixtures, r.index)))

    @sends(means="C M d", variances="C M d", weights="C M", counts="C")
    def share_mixtures(self, client: Client) -> Payload:
        """Each class's mixture, zeros for a class with fewer than two samples, and how many samples it has."""
        h, labels = client.predict_private("features"), client.private.labels
        seed = derive(client.seed, "mixture", client.index, client.round)
        fitted = [fit_mixture(h[labels == c], self.params.mixtures, seed) for c in range(client.model.num_classes)]
        means, variances, weights = (torch.stack(column).to(client.device) for column in zip(*fitted, strict=True))
        counts = client.class_counts().float()
        return Payload(means=means, variances=variances, weights=weights, counts=counts * (counts > 1))

    def sampled(self, mixtures: Mapping[int, Payload], index: int) -> tuple[Tensor, Tensor]:
        """Features (N×d) from all mixtures, and their classes (N); none where no client has samples.

        Each client's share of them is its known number of samples, whatever counts it sends.
        """
        received = [(self.spec.clients[k].train, payload) for k, payload in mixtures.items()]
        means, variances, weights, counts = (
            torch.stack([payload[name].cpu() for _, payload in received])
            for name in ("means", "variances", "weights", "counts")
        )
        sizes = torch.tensor([float(train) for train, _ in received])
        shares = counts.clamp_min(0) / counts.clamp_min(0).sum(dim=1, keepdim=True).clamp_min(1)
        chances = (sizes[:, None, None] * shares.unsqueeze(2) * weights.clamp_min(0)).flatten()
        if not float(chances.sum()) > 0:
            return means.new_zeros(0, means.shape[-1]), torch.zeros(0, dtype=torch.int64)
        draw = generator(self.spec.seed, "mixtures", index)
        chosen = torch.multinomial(chances, int(sizes.sum()), replacement=True, generator=draw)
        noise = torch.randn(len(chosen), means.shape[-1], generator=draw)
        spread = variances.clamp_min(0).sqrt().flatten(0, 2)[chosen]
        return means.flatten(0, 2)[chosen] + spread * noise, chosen // weights.shape[2] % weights.shape[1]


def fit_mixture(h: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances (M×d) and weights (M) of a mixture of at most ``count`` Gaussians fitted to n×d features.

    Zeros fill what is missing where there are fewer samples than Gaussians, and everything for fewer than two samples.
    """
    means, variances, weights = torch.zeros(count, h.shape[1]), torch.zeros(count, h.shape[1]), torch.zeros(count)
    used = min(count, len(h))
    if len(h) > 1:
        model = GaussianMixture(used, covariance_type="diag", random_state=seed % 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(h.cpu().double().numpy())
        for place, found in ((means, model.means_), (variances, model.covariances_), (weights, model.weights_)):
            place[:used] = torch.from_numpy(found)
    return means, variances, weights
