"""Measures of trained models: CKA between representations, Grad-CAM, and the proxy A-distance of two domains."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedchoir.models import Model

FEATURES = "features"


class MinibatchCKA:
    """Linear CKA among M models, from minibatches (Nguyen, Raghu and Kornblith, ICLR 2021).

    CKA (Kornblith et al., ICML 2019) is 1 for representations that are equal up to rotation and scale, and 0 for
    unrelated ones. Song et al.'s unbiased estimate of HSIC is summed over batches, so its expectation is independent of
    the batch size. Only B×B matrices are formed, so representations may be as wide as a whole feature map.
    """

    def __init__(self) -> None:
        self._hsic: Tensor | None = None

    def add(self, *representations: Tensor) -> None:
        """Add one batch of B ≥ 4 samples: a B×anything representation from each of the M models."""
        b = len(representations[0])
        if b < 4:
            raise ValueError(f"a batch of {b} images; the estimate needs 4 or more")
        hsic = _hsic(torch.stack([_gram(z) for z in representations]))
        self._hsic = hsic if self._hsic is None else self._hsic + hsic

    def matrix(self) -> Tensor:
        """M×M, symmetric, 1 on the diagonal; nan for a model with the same output for every image."""
        if self._hsic is None:
            raise ValueError("no batch was added")
        own = self._hsic.diagonal()
        return (self._hsic / (own.unsqueeze(0) * own.unsqueeze(1)).sqrt()).cpu()


def _gram(z: Tensor) -> Tensor:
    """B×B inner products with a zero diagonal. Centring does not change HSIC but reduces rounding errors."""
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
def compare_models(models: Sequence[Model], batches: Iterable[Tensor]) -> Tensor:
    """M×M CKA of the models' features on the same images, in eval mode."""
    cka = MinibatchCKA()
    for images in batches:
        cka.add(*(model.eval().features(images) for model in models))
    return cka.matrix()


@torch.no_grad()
def compare_layers(one: Model, two: Model, batches: Iterable[Tensor]) -> dict[str, float]:
    """CKA between the same layers of two models of one architecture: the stages of the trunk, then the features."""
    found: dict[str, MinibatchCKA] = {}
    for images in batches:
        first, second = layer_outputs(one, images), layer_outputs(two, images)
        for layer in first:
            found.setdefault(layer, MinibatchCKA()).add(first[layer], second[layer])
    return {layer: float(cka.matrix()[0, 1]) for layer, cka in found.items()}


def layer_outputs(model: Model, images: Tensor) -> dict[str, Tensor]:
    """The output of each stage before the head by name, and the features."""
    outputs: dict[str, Tensor] = {}

    def hook(name: str, stage: nn.Module) -> RemovableHandle:
        def store(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and len(output) == len(images):
                outputs[name] = output

        return stage.register_forward_hook(store)

    handles = [hook(name, stage) for name, stage in model.eval().stage_modules().items()]
    features = model.features(images)
    for handle in handles:
        handle.remove()
    return {**outputs, FEATURES: features}


def grad_cam(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM (Selvaraju et al., ICCV 2017) on the last feature map: B×3×S×S, B → B×S×S in [0, 1].

    Channels are weighted by the mean gradient of the class logit over all positions, summed and cut at 0; each image is
    scaled by its own maximum. A map without positive values stays 0.
    """
    model.require_map("Grad-CAM")
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            maps, gradient = model.map_and_gradient(images, classes)
    finally:
        model.train(was_training)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    heat = F.relu((weights * maps).sum(dim=1, keepdim=True))
    heat = F.interpolate(heat, size=images.shape[-2:], mode="bilinear", align_corners=False).squeeze(1)
    return heat / heat.amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(heat.dtype).tiny)


def proxy_a_distance(a: np.ndarray, b: np.ndarray, seed: int = 0) -> float:
    """Proxy A-distance 2 (1 − 2 ε) of two domains (Ben-David et al., NeurIPS 2006).

    ε is the test error of a linear classifier that separates the domains by their features, N×d and M×d; half of each
    is for training, and both domains have the same weight. 0: inseparable; 2: always separable. Negative values are
    noise and become 0.

    >>> draw = np.random.default_rng(0)
    >>> same, other = draw.normal(size=(2, 200, 5)), draw.normal(size=(200, 5)) + 8
    >>> proxy_a_distance(same[0], same[1]) < 0.5, proxy_a_distance(same[0], other)
    (True, 2.0)
    """
    draw = np.random.default_rng(seed)
    halves = [np.array_split(domain[draw.permutation(len(domain))], 2) for domain in (a, b)]
    train, test = (np.concatenate([half[k] for half in halves]) for k in (0, 1))
    labels = [np.repeat([0, 1], [len(halves[0][k]), len(halves[1][k])]) for k in (0, 1)]
    scaler = StandardScaler().fit(train)
    model = LogisticRegression(C=0.1, max_iter=300, class_weight="balanced").fit(scaler.transform(train), labels[0])
    predicted = model.predict(scaler.transform(test))
    error = np.mean([np.mean(predicted[labels[1] == domain] != domain) for domain in (0, 1)])
    return float(max(0.0, 2 * (1 - 2 * error)))


def rank_correlation(x: list[float], y: list[float]) -> float | None:
    """Spearman's ρ; None for fewer than three points or a constant."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
