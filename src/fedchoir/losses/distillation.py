"""Losses on predictions: distillation from a teacher, with and without the true class, and symmetric CE."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import check_choice, kl, one_hot

NON_TARGET_FORMS = ("masked", "renormalised")
_LABEL_FLOOR = 1e-4
_PREDICTION_FLOOR = 1e-7


def kd(student: Tensor, teacher: Tensor, temperature: float, tau_squared: bool = True) -> Tensor:
    """Knowledge distillation over all classes, scaled by τ² as FNTD is.

    FCCL+ (Huang et al., TPAMI 2023) eq. 7-8 with the τ² of eq. 10, averaged over the batch. FCCL (CVPR 2022) eq. 4-5
    and FedDF are the case τ = 1.

        L = τ² Σ_u p_T^u log(p_T^u / p_S^u),   p = σ(z / τ)

    Args:
        student: logits, B×C.
        teacher: logits, B×C; detached.
        temperature: τ.
        tau_squared: the factor τ²; without it the gradient falls with τ².

    >>> z = torch.tensor([[0.0, 1.0, 2.0]])
    >>> kd(z, z, temperature=2.0).item()
    0.0
    >>> round(kd(torch.zeros(1, 2), torch.tensor([[0.0, 1000.0]]), 1.0).item(), 4)  # log 2
    0.6931
    """
    return _scale(temperature, tau_squared) * kl(teacher / temperature, student / temperature)


def _scale(temperature: float, tau_squared: bool) -> float:
    return temperature**2 if tau_squared else 1.0


def _non_target(student: Tensor, teacher: Tensor, target: Tensor, form: str) -> Tensor:
    """Σ_{u≠y} p_T^u log(p_T^u / p_S^u) for each of B samples; `target` is the B×C mask of the true class."""
    check_choice("form", form, NON_TARGET_FORMS)
    if form == "renormalised":
        # A finite floor: with −∞ the excluded entry would be 0·(∞ − ∞).
        student = student.masked_fill(target, torch.finfo(student.dtype).min)
        teacher = teacher.masked_fill(target, torch.finfo(teacher.dtype).min)
    log_student, log_teacher = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    terms = log_teacher.exp() * (log_teacher - log_student)
    return terms.masked_fill(target, 0.0).sum(dim=1)


def fntd(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    temperature: float = 3.0,
    form: str = "masked",
    tau_squared: bool = True,
) -> Tensor:
    """Federated non-target distillation: preserve the teacher's probabilities of the wrong classes.

    FCCL+ (Huang et al., TPAMI 2023) eq. 13 with the τ² of eq. 10, averaged over the batch:

        L = τ² Σ_{u≠y} p_T^u log(p_T^u / p_S^u)

    "masked" is that equation: p = σ(z / τ) over all classes, without the true class in the sum. It can be negative,
    and its gradient on the true logit is τ (1 − p_T^y) p_S^y > 0, although eq. 12 states 0. "renormalised" is FedNTD
    (Lee et al., NeurIPS 2022): p = σ(z / τ) over the wrong classes alone, never negative, no gradient on the true
    logit.

    Args:
        student: logits, B×C.
        teacher: logits, B×C; detached.
        labels: true classes, B.
        temperature: τ.
        form: "masked" or "renormalised".
        tau_squared: the factor τ², which eq. 10 and the released code have; eq. 13 and 14 print none.

    >>> z, y = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([2])
    >>> fntd(z, z, y).item()
    0.0
    >>> shifted = torch.tensor([[0.0, 1.0, 9.0]])  # differs in the true logit alone
    >>> fntd(shifted, z, y, form="renormalised").item()
    0.0
    >>> bool(fntd(torch.tensor([[0.0, 1.0, -9.0]]), z, y) < 0)
    True
    """
    target = one_hot(labels, student.shape[1])
    per_sample = _non_target(student / temperature, teacher.detach() / temperature, target, form)
    return _scale(temperature, tau_squared) * per_sample.mean()


def cnd(student: Tensor, teacher: Tensor, labels: Tensor, form: str = "masked") -> Tensor:
    """Correct not-target distillation: FNTD on the samples that the old model classified correctly.

    FBCL eq. 6, averaged over the batch:

        L = γ Σ_{i≠y} P_old(i) log(P_old(i) / P_cur(i)),   γ = P_old(y) if argmax P_old = y, else 0

    The equation leaves the true class out of the sum ("masked", as in `fntd`); the sentence before it can also mean
    probabilities over the wrong classes alone ("renormalised"). γ is over all classes in both.

    Args:
        student: current logits, B×C.
        teacher: the old model's logits, B×C; detached.
        labels: true classes, B.
        form: "masked" or "renormalised".

    >>> old = torch.tensor([[2.0, 0.0, 1.0]])
    >>> cnd(torch.zeros(1, 3), old, torch.tensor([1])).item()  # the old model was wrong
    0.0
    >>> cnd(torch.zeros(1, 3), old, torch.tensor([0])).item() != 0
    True
    """
    target = one_hot(labels, student.shape[1])
    old = teacher.detach()
    confidence = F.softmax(old, dim=1).masked_fill(~target, 0.0).sum(dim=1)
    gamma = confidence * (old.argmax(dim=1) == labels)
    return (gamma * _non_target(student, old, target, form)).mean()


def sce(logits: Tensor, labels: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """Symmetric cross-entropy, robust to label noise (RHFL's local loss).

    RHFL (Fang and Ye, CVPR 2022), after Wang et al., ICCV 2019; averaged over the batch:

        L = α CE + β RCE,   RCE = −Σ_u p_u log q_u

    with the one-hot label q clamped to at least 1e-4 and the prediction p to at least 1e-7.

    Args:
        logits: B×C.
        labels: classes, B.
        alpha: α, the weight of cross-entropy.
        beta: β, the weight of reverse cross-entropy.

    >>> round(sce(torch.zeros(1, 2), torch.tensor([0]), alpha=0.0).item(), 4)  # −½ log 1e-4
    4.6052
    """
    target = one_hot(labels, logits.shape[1])
    prediction = F.softmax(logits, dim=1).clamp_min(_PREDICTION_FLOOR)
    # log q is 0 at the label and log 1e-4 at the other classes.
    reverse = -math.log(_LABEL_FLOOR) * prediction.masked_fill(target, 0.0).sum(dim=1).mean()
    return alpha * F.cross_entropy(logits, labels) + beta * reverse


def pool_predictions(logits: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Aggregate the predictions of N teachers into the two weighted sums that `pooled_kl` needs.

    For each of J students, over N teachers with p_n = σ(logits_n):

        t = Σ_n w_n p_n,   e = Σ_n w_n Σ_u p_n^u log p_n^u

    Args:
        logits: N×B×C.
        weights: w, J×N×B: the weight of each teacher for each student and sample.

    Returns:
        t, J×B×C, and e, J×B.

    >>> t, e = pool_predictions(torch.zeros(2, 1, 4), torch.tensor([[[0.5], [0.25]]]))
    >>> t.tolist(), round(e.item(), 4)  # ¾ of the uniform distribution, ¾ of −log 4
    ([[[0.1875, 0.1875, 0.1875, 0.1875]]], -1.0397)
    """
    log_p = F.log_softmax(logits, dim=2)
    p = log_p.exp()
    negentropy = (p * log_p).sum(dim=2)
    with torch.autocast(logits.device.type, enabled=False):
        return torch.einsum("jnb,nbc->jbc", weights, p), torch.einsum("jnb,nb->jb", weights, negentropy)


def pooled_kl(student: Tensor, pool: Tensor, negentropy: Tensor, counted: Tensor | None = None) -> Tensor:
    """The weighted sum of KL divergences from many teachers, computed from their aggregate.

    With t and e from `pool_predictions`, averaged over the batch, or over the samples that count:

        L = Σ_n w_n KL(p_n ‖ σ(z)) = e − Σ_u t_u log σ(z)_u

    The public losses of RHFL (Fang and Ye, CVPR 2022) and FedMatch (Jeong et al., ICLR 2021).

    Args:
        student: logits z, B×C.
        pool: t, B×C; detached.
        negentropy: e, B; a constant of the loss.
        counted: B, 1 for samples that count and 0 for the others; the loss is 0 where none does. Default: all.

    >>> teachers, w = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]), torch.tensor([0.5, 0.5]).view(1, 2, 1)
    >>> (t, e), z = pool_predictions(teachers, w), torch.tensor([[0.3, 0.0]])
    >>> apart = 0.5 * kd(z, teachers[0], 1.0) + 0.5 * kd(z, teachers[1], 1.0)
    >>> bool(torch.isclose(pooled_kl(z, t[0], e[0]), apart))
    True
    """
    cross_entropy = -(pool.detach() * F.log_softmax(student, dim=1)).sum(dim=1)
    divergence = cross_entropy + negentropy.detach()
    if counted is None:
        return divergence.mean()
    return (counted.detach() * divergence).sum() / counted.detach().sum().clamp_min(1)
