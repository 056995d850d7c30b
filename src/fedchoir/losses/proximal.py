"""Penalties on the distance between weights: FedProx and EWC."""

from collections.abc import Iterable

import torch
from torch import Tensor


def _flattened(*groups: Iterable[Tensor]) -> list[Tensor]:
    """Every group's tensors as one vector: a few GPU operations instead of a few per layer."""
    matched = list(zip(*groups, strict=True))
    if not matched:
        raise ValueError("no parameters to penalise; pass the model's trainable parameters")
    return [torch.cat([tensor.flatten() for tensor in group]) for group in zip(*matched, strict=True)]


def proximal(params: Iterable[Tensor], reference: Iterable[Tensor]) -> Tensor:
    """FedProx: penalise the distance to the global weights.

    FedProx (Li et al., MLSys 2020), its proximal term without its weight μ:

        L = ½ Σ ‖w − w_g‖²

    Args:
        params: the local parameters w.
        reference: the global parameters w_g, in the same order and shapes; detached.

    >>> proximal([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 0.0])]).item()
    2.5
    """
    w, w_ref = _flattened(params, reference)
    return 0.5 * (w - w_ref.detach()).square().sum()


def ewc(params: Iterable[Tensor], reference: Iterable[Tensor], fisher: Iterable[Tensor]) -> Tensor:
    """Elastic weight consolidation: penalise changes of important weights.

    EWC (Kirkpatrick et al., PNAS 2017), its penalty without its weight λ; FCCL+ Table 16 compares it with FNTD:

        L = ½ Σ F (w − w_old)²

    Args:
        params: the current parameters w.
        reference: the old parameters w_old, in the same order and shapes; detached.
        fisher: F, the diagonal of the Fisher information at w_old; detached.

    >>> w, old, importance = torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor([4.0, 0.0])
    >>> ewc([w], [old], [importance]).item()
    2.0
    """
    w, w_ref, f = _flattened(params, reference, fisher)
    return 0.5 * (f.detach() * (w - w_ref.detach()).square()).sum()
