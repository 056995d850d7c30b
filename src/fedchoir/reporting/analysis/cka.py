"""Linear CKA: how alike two models see the same images, whatever their axes and scale (Kornblith et al., ICML 2019).

1 means the same up to rotation and scale, 0 unrelated. FedCT reads it as knowledge kept across an exchange (one model
before and after) and shared between clients (Fig. 2 and 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedchoir.models import VisionModel

FEATURES = "features"


def linear_cka(x: Tensor, y: Tensor) -> float:
    """CKA of all representations at once: ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of centred x (N×p) and y (N×q).

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    >>> round(linear_cka(x, 5 * x.flip(1) + 1), 6)
    1.0
    """
    x, y = (z.double() - z.double().mean(dim=0) for z in (x, y))
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


class MinibatchCKA:
    """CKA from minibatches, among M models at once (Nguyen, Raghu and Kornblith, ICLR 2021).

    Sums Song et al.'s unbiased estimate of HSIC over batches, so the value does not depend on the batch size but for
    chance. It takes B×B matrices alone: representations may have any width, such as a whole feature map.
    """

    def __init__(self) -> None:
        self._hsic: Tensor | None = None

    def add(self, *representations: Tensor) -> None:
        """What each of M models says about one batch of B ≥ 4 images: B×anything each."""
        b = len(representations[0])
        if b < 4:
            raise ValueError(f"a batch of {b} images; the estimate needs 4 or more")
        grams = torch.stack([_gram(z) for z in representations])  # M×B×B
        hsic = _hsic(grams)
        self._hsic = hsic if self._hsic is None else self._hsic + hsic

    def matrix(self) -> Tensor:
        """M×M, symmetric, 1 on the diagonal; nan for a model that says the same about every image."""
        if self._hsic is None:
            raise ValueError("no batch was added")
        own = self._hsic.diagonal()
        return (self._hsic / (own.unsqueeze(0) * own.unsqueeze(1)).sqrt()).cpu()


def _gram(z: Tensor) -> Tensor:
    """B×B inner products without their diagonal. Centred first, which changes nothing but rounding errors."""
    z = z.flatten(1).double()
    z = z - z.mean(dim=0)
    return (z @ z.T).fill_diagonal_(0.0)


def _hsic(grams: Tensor) -> Tensor:
    """HSIC₁ of every pair of M Gram matrices (M×B×B, zero diagonals): M×M."""
    b = grams.shape[1]
    rows = grams.sum(dim=2)  # M×B
    total = rows.sum(dim=1)
    trace = torch.einsum("mij,nij->mn", grams, grams)
    both = torch.outer(total, total) / ((b - 1) * (b - 2))
    cross = 2 / (b - 2) * rows @ rows.T
    return (trace + both - cross) / (b * (b - 3))


@torch.no_grad()
def compare_models(models: Sequence[VisionModel], batches: Iterable[Tensor]) -> Tensor:
    """M×M CKA of the models' features on the same images, in eval mode."""
    cka = MinibatchCKA()
    for images in batches:
        cka.add(*(model.eval().features(images) for model in models))
    return cka.matrix()


@torch.no_grad()
def compare_layers(one: VisionModel, two: VisionModel, batches: Iterable[Tensor]) -> dict[str, float]:
    """CKA between the same layers of two models of one architecture: the stages of the trunk, then the features."""
    layers = [*(name for name, _ in one.trunk.named_children()), FEATURES]
    found = {layer: MinibatchCKA() for layer in layers}
    for images in batches:
        with listening(one.eval()) as first, listening(two.eval()) as second:
            said = [model.features(images) for model in (one, two)]
        for layer in layers[:-1]:
            found[layer].add(first[layer], second[layer])
        found[FEATURES].add(*said)
    return {layer: float(cka.matrix()[0, 1]) for layer, cka in found.items()}


@contextmanager
def listening(model: VisionModel) -> Iterator[Mapping[str, Tensor]]:
    """What each stage of the trunk says, by name, filled while the model runs inside the block."""
    received: dict[str, Tensor] = {}

    def hook(name: str) -> object:
        def hear(module: nn.Module, inputs: object, output: Tensor) -> None:
            received[name] = output

        return model.trunk.get_submodule(name).register_forward_hook(hear)

    handles = [hook(name) for name, _ in model.trunk.named_children()]
    try:
        yield received
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
