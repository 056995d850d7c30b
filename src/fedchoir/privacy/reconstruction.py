"""Reconstruct training samples from a model's update, as a server that receives weights can try.

Two attacks. *Analytic*: an update of the first linear layer holds input samples themselves, row by row, wherever a
neuron was active for one sample only; servers that send crafted weights (imprint attacks) make that the rule. *Gradient
inversion* (Geiping et al., 2020): optimise random inputs until their gradient points in the update's direction.
Both are lower bounds: a better attack may see more.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST = 1e-12


def best_psnr(candidates: Tensor, private: Tensor) -> float:
    """The highest peak signal-to-noise ratio (dB) between any candidate and any private sample.

    Above 30 dB two images look the same; below 15 dB they have little in common.
    """
    if not len(candidates) or not len(private):
        return -math.inf
    span = float(private.max() - private.min()) or 1.0
    errors = torch.cdist(candidates.flatten(1).double(), private.flatten(1).double()).square() / private[0].numel()
    return 10 * math.log10(span**2 / max(float(errors.min()), SMALLEST))


def from_first_layer(model: nn.Module, update: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """Inputs that the update of the first linear layer holds: rows of its weight divided by its bias, and the same for
    differences of neighbouring rows. Empty if no linear layer takes whole samples."""
    size = math.prod(shape)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer.in_features == size and layer.bias is not None:
            weight, bias = (update[f"{name}.{part}"].double() for part in ("weight", "bias"))
            rows = torch.cat([weight, weight[1:] - weight[:-1]])
            scale = torch.cat([bias, bias[1:] - bias[:-1]])
            used = scale.abs() > SMALLEST
            return (rows[used] / scale[used, None]).reshape(-1, *shape).float()
    return torch.empty(0, *shape)


def by_inversion(
    model: nn.Module,
    update: Mapping[str, Tensor],
    labels: Tensor,
    shape: torch.Size,
    *,
    steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Inputs of these labels whose gradient has the direction of the update; the model has the weights before it.

    Args:
        update: weights before minus weights after, by the names of parameters.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad and name in update]
    parameters = [p for name, p in model.named_parameters() if name in names]
    target = torch.cat([update[name].flatten() for name in names])
    found = torch.randn(len(labels), *shape, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([found], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(found), labels)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        gradient = torch.cat([g.flatten() for g in gradients])
        (1 - F.cosine_similarity(gradient, target, dim=0) + 1e-3 * _variation(found)).backward()
        optimizer.step()
    return found.detach()


def _variation(inputs: Tensor) -> Tensor:
    """How much neighbouring values differ, along the last dimensions of images and series."""
    dims = range(2, inputs.dim()) or range(1, inputs.dim())
    return sum((inputs.diff(dim=dim).abs().mean() for dim in dims), torch.zeros(()))
