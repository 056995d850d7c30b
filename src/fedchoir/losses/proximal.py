"""Penalties on how far the weights move: FedProx and EWC."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedchoir.utils.errors import UsageError


def _in_a_row(*groups: Iterable[Tensor]) -> list[Tensor]:
    """Every group's tensors as one row of numbers: a few operations on a GPU instead of a few for every layer."""
    matched = list(zip(*groups, strict=True))
    if not matched:
        raise UsageError("no parameters to penalise; pass the model's trainable parameters")
    return [torch.cat([tensor.flatten() for tensor in group]) for group in zip(*matched, strict=True)]


def proximal(params: Iterable[Tensor], reference: Iterable[Tensor]) -> Tensor:
    """FedProx: stay near the global weights.

    FedProx (Li et al., MLSys 2020), its proximal term without its weight μ:

        L = ½ Σ ‖w − w_g‖²

    Args:
        params: the local parameters w.
        reference: the global parameters w_g, in the same order and shapes; no gradient flows into them.

    >>> proximal([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 0.0])]).item()
    2.5
    """
    w, w_ref = _in_a_row(params, reference)
    return 0.5 * (w - w_ref.detach()).square().sum()


def ewc(params: Iterable[Tensor], reference: Iterable[Tensor], fisher: Iterable[Tensor]) -> Tensor:
    """Elastic weight consolidation: stay near the old weights where they mattered.

    EWC (Kirkpatrick et al., PNAS 2017), its penalty without its weight λ; the rival of FNTD in FCCL+ Table 16:

        L = ½ Σ F (w − w_old)²

    Args:
        params: the current parameters w.
        reference: the old parameters w_old, in the same order and shapes; no gradient flows into them.
        fisher: F, the diagonal of the Fisher information at w_old, likewise.

    >>> w, old, importance = torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor([4.0, 0.0])
    >>> ewc([w], [old], [importance]).item()
    2.0
    """
    w, w_ref, f = _in_a_row(params, reference, fisher)
    return 0.5 * (f.detach() * (w - w_ref.detach()).square()).sum()
