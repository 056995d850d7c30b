"""Label smoothing, and how much of it has the same optimum as masked FNTD: a control without any teacher."""

import math

import torch.nn.functional as F
from torch import Tensor


def label_smoothing(logits: Tensor, labels: Tensor, smoothing: float, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy to smoothed labels (Szegedy et al., CVPR 2016), averaged over the batch.

        L = −Σ_u t_u log σ(z)_u,   t = (1 − ε) onehot(y) + ε / C

    Args:
        logits: z, B×C.
        labels: true classes, B.
        smoothing: ε, from 0 to 1.
        weight: of the classes, C; as in `torch.nn.functional.cross_entropy`.

    >>> import torch
    >>> z = torch.tensor([[0.95, 0.05]]).log()
    >>> z.requires_grad_(True)
    tensor([[-0.0513, -2.9957]], requires_grad=True)
    >>> label_smoothing(z, torch.tensor([0]), 0.1).backward()  # at the optimum: 1 − ε + ε / C is 0.95
    >>> z.grad.abs().max().item() < 1e-6
    True
    """
    return F.cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing)


def fntd_cap(confidence: float, classes: int, temperature: float = 3.0, tau_squared: bool = True) -> float:
    """The probability of the true class at which CE + masked FNTD has its minimum.

    Masked FNTD (`fntd`) has the gradient τ (1 − q_y) s_y on the true logit, where q = σ(z_T / τ) is the teacher and
    s = σ(z / τ) the student. Cross-entropy has p_y − 1, where p = σ(z). Both vanish together where

        1 − p_y = τ (1 − q_y) s_y.

    Let the teacher have the probability ``confidence`` for the true class, and equal ones for the others. Then the
    other logits of the student are equal, too, and z_y − z_u = a is the only unknown: p_y = 1 / (1 + (C − 1) e^−a) and
    s_y = 1 / (1 + (C − 1) e^(−a/τ)). The left side falls and the right side grows with a, so there is one root. It is
    found by bisection. A teacher that is sure of the true class (0.86) holds the student at 0.57:

    >>> round(fntd_cap(0.86, classes=10), 2)
    0.57

    Args:
        confidence: the teacher's probability of the true class, at temperature 1; below 1.
        classes: C.
        temperature: τ.
        tau_squared: whether FNTD has the factor τ²; without it, read 1 / τ for τ on the right side.
    """
    if not 0 < confidence < 1 or classes < 2:
        raise ValueError(f"confidence {confidence:g} should lie between 0 and 1, and classes {classes} be at least 2")

    def true_class(gap: float) -> float:
        return 1 / (1 + (classes - 1) * math.exp(-gap))

    gap_of_teacher = math.log(confidence / (1 - confidence) * (classes - 1))
    factor = temperature if tau_squared else 1 / temperature
    pull = factor * (1 - true_class(gap_of_teacher / temperature))
    low, high = -100.0, 100.0
    for _ in range(100):
        gap = (low + high) / 2
        if 1 - true_class(gap) > pull * true_class(gap / temperature):
            low = gap
        else:
            high = gap
    return true_class(low)


def matched_smoothing(confidence: float, classes: int, temperature: float = 3.0, tau_squared: bool = True) -> float:
    """ε with which `label_smoothing` has its minimum at `fntd_cap`: 1 − ε + ε / C = p_y, so ε = (1 − p_y) C / (C − 1).

    >>> round(matched_smoothing(0.86, classes=10), 3)
    0.475
    """
    epsilon = (1 - fntd_cap(confidence, classes, temperature, tau_squared)) * classes / (classes - 1)
    if epsilon > 1:
        raise ValueError(
            f"FNTD with {classes} classes, temperature {temperature:g} and a teacher of {confidence:g} prefers a wrong "
            "class, which no label smoothing does; the temperature should be lower"
        )
    return epsilon
