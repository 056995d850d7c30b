"""Evaluation of self-supervised features: a linear probe and k nearest neighbours."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedchoir.losses._common import one_hot
from fedchoir.methods.api import Batch, Client
from fedchoir.utils.rng import generator

CHUNK = 1000  # samples per similarity matrix


class LinearProbe(nn.Module):
    """A linear layer on standardised features, B×d → B×C, with zero initial weights."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor, classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", features.mean(0))
        # a constant feature stays 0
        self.register_buffer("scale", 1 / features.std(0, correction=0).clamp_min(1e-6))
        self.layer = nn.Linear(features.shape[1], classes, device=features.device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.layer((h - self.mean) * self.scale)
        return logits


def fit_probe(
    client: Client,
    features: Tensor,
    labels: Tensor,
    *,
    epochs: int = 200,
    batch: int = 512,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
) -> LinearProbe:
    """Linear evaluation: train a linear layer on features (N×d) and labels (N). This and the nearest neighbours are the
    only use of labels in self-supervised methods."""
    probe = LinearProbe(features, client.model.num_classes)
    optimizer = torch.optim.Adam(probe.parameters(), lr=lr, weight_decay=weight_decay, fused=True)

    def batches() -> Iterator[Batch]:
        for epoch in range(epochs):
            draw = generator(client.seed, "probe", client.index, epoch)
            order = torch.randperm(len(labels), generator=draw).to(client.device)
            for index in order.split(batch):
                yield Batch(features[index], labels[index])

    client.trainer.train(client, optimizer, lambda _, b: F.cross_entropy(probe(b.inputs), b.labels), batches())
    return probe


class NearestNeighbours:
    """Votes of the k nearest labelled features, as in `knn_accuracy`: features B×d → log of the votes' shares, B×C.

    >>> h, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> NearestNeighbours(h, y, classes=2, k=1)(torch.tensor([[0.2, 0.9]])).argmax(1)
    tensor([1])
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int, k: int, temperature: float = 0.07) -> None:
        self.features, self.targets = F.normalize(features, dim=1), one_hot(labels, classes).float()
        self.k, self.temperature = min(k, len(features)), temperature

    def __call__(self, h: Tensor) -> Tensor:
        nearest = (F.normalize(h, dim=1) @ self.features.T).topk(self.k, dim=1)
        return _votes(nearest.values, self.targets[nearest.indices], self.temperature)


def _votes(similarities: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Votes weighted by exp(similarity / temperature): B×k and B×k×C → B×C."""
    shares = (similarities / temperature).softmax(dim=1).unsqueeze(1) @ targets
    return shares.squeeze(1).clamp_min(1e-12).log()


def knn_accuracy(features: Tensor, labels: Tensor, classes: int, k: int = 20, temperature: float = 0.07) -> Tensor:
    """Leave-one-out accuracy of k nearest neighbours in percent, a scalar on the device.

    Cosine similarity, votes weighted by exp(similarity / temperature), as in Wu et al., CVPR 2018.

    Args:
        features: N×d.
        labels: N.

    >>> h = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> knn_accuracy(h, torch.tensor([0, 0, 1, 1]), classes=2, k=1).item()
    100.0
    """
    h = F.normalize(features, dim=1)
    targets = one_hot(labels, classes).float()
    hits = torch.zeros((), device=h.device)
    for start in range(0, len(h), CHUNK):
        rows = torch.arange(start, min(start + CHUNK, len(h)), device=h.device)
        similarity = h[rows] @ h.T
        similarity[torch.arange(len(rows), device=h.device), rows] = -torch.inf  # not itself
        nearest = similarity.topk(min(k, len(h) - 1), dim=1)
        votes = _votes(nearest.values, targets[nearest.indices], temperature)
        hits += (votes.argmax(1) == labels[rows]).sum()
    return 100 * hits / len(h)
