"""Tensor helpers that several losses share. None of them synchronises with the device."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `ValueError` unless ``value`` is one of ``choices``.

    >>> check_choice("form", "mask", ("masked", "renormalised"))
    Traceback (most recent call last):
    ValueError: form is 'mask'; choose one of: masked, renormalised
    """
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose one of: {', '.join(choices)}")


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in the operands' own precision.

    Under autocast a plain `@` rounds correlations and similarities to bfloat16, an error that small temperatures
    amplify, and returns another dtype.

    >>> product(torch.eye(2), torch.ones(2, 1)).tolist()
    [[1.0], [1.0]]
    """
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of `a` (A×d) with every row of `b` (B×d), as an A×B matrix. A zero row gives 0.

    >>> cosines(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])).tolist()
    [[1.0, 0.0, 0.0]]
    """
    return product(F.normalize(a, dim=1), F.normalize(b, dim=1).T)


def off_diagonal(square: Tensor) -> Tensor:
    """An n×n matrix without its diagonal, as n×(n−1); every row keeps its order.

    In the flattened matrix diagonal entries are n+1 apart, so two views and one copy suffice. A boolean mask would
    synchronise with the device.

    >>> off_diagonal(torch.arange(9).view(3, 3)).tolist()
    [[1, 2], [3, 5], [6, 7]]
    """
    n = square.shape[0]
    return square.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Boolean B×C matrix, true at each sample's class; a label outside 0…C−1 gives a row of False.

    `torch.nn.functional.one_hot` reads the labels' range back to the host; this comparison does not.

    >>> one_hot(torch.tensor([1, 0]), 3).tolist()
    [[False, True, False], [True, False, False]]
    """
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)


def kl(target: Tensor, logits: Tensor) -> Tensor:
    """KL(σ(target) ‖ σ(logits)) along each row of two B×C matrices, averaged over rows; ``target`` is detached.

    >>> kl(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
    0.0
    """
    log_target = F.log_softmax(target.detach(), dim=1)
    return F.kl_div(F.log_softmax(logits, dim=1), log_target, reduction="batchmean", log_target=True)
