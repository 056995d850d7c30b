"""The diagonal of the Fisher information, for EWC (Kirkpatrick et al., PNAS 2017)."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client
from fedchoir.models import Model

FisherForm = Literal["sample", "batch"]
State = dict[str, Tensor]
Squares = Callable[[Tensor, Tensor], State]
"""Samples and labels → the sum over the samples of the squared gradients, by parameter name."""

GRADIENTS = 2**26  # numbers in the per-sample gradients of one chunk: 256 MB


def diagonal_fisher(client: Client, weights: Mapping[str, Tensor], form: FisherForm = "sample") -> State:
    """Mean squared gradient of the log-likelihood at ``weights`` over the client's private data, by parameter name.

        F = 1/N Σ_n (∂ log p(y_n | x_n) / ∂w)²

    "sample" is this equation. "batch" squares the mean gradient of each batch instead, whose single gradients cancel
    out: where they are independent with mean 0, F is smaller by the batch's size.
    """
    model = client.frozen_copy(weights).requires_grad_(True)
    parameters = dict(model.named_parameters())
    size = client.settings.local_batch
    if form == "sample":
        size = max(1, min(size, GRADIENTS // sum(p.numel() for p in parameters.values())))
    squares = (of_samples if form == "sample" else of_batch)(model)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for inputs, labels in client.private_chunks(size):
        for name, value in squares(inputs, labels).items():
            total[name].add_(value, alpha=1 / len(client.private))
    return total


def of_samples(model: Model) -> Squares:
    """Squares of the gradients of single samples."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: State, one: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (one.unsqueeze(0),)).float(), label.unsqueeze(0))

    gradients, alone = vmap(grad(loss), in_dims=(None, 0, 0)), of_batch(model)

    def squares(inputs: Tensor, labels: Tensor) -> State:
        try:
            return {name: g.square().sum(dim=0) for name, g in gradients(parameters, inputs, labels).items()}
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # vmap does not know some layers, such as recurrent ones: sample by sample
            each = [alone(x, y) for x, y in zip(inputs.split(1), labels.split(1), strict=True)]
            return {name: torch.stack([value[name] for value in each]).sum(dim=0) for name in each[0]}

    return squares


def of_batch(model: Model) -> Squares:
    """The square of the batch's mean gradient, once for each of its samples."""
    names, parameters = zip(*model.named_parameters(), strict=True)

    def squares(inputs: Tensor, labels: Tensor) -> State:
        loss = cross_entropy(model(inputs).float(), labels)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return {n: g.square() * len(labels) for n, g in zip(names, gradients, strict=True) if g is not None}

    return squares
