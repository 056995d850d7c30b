"""Differential privacy: models without BatchNorm, and the ε of Poisson-sampled Gaussian steps (dp-accounting's PLD)."""

import math
from copy import deepcopy
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedchoir.utils.errors import UsageError


def without_batchnorm(model: nn.Module) -> None:
    """Replace every BatchNorm of the model, in place, by a GroupNorm with up to 32 groups."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                norm = nn.GroupNorm(math.gcd(32, child.num_features), child.num_features, eps=child.eps)
                setattr(parent, name, nn.Sequential(norm, Copy()))
            if getattr(child, "inplace", False):
                setattr(child, "inplace", False)  # noqa: B010 - not every module has it


class Copy(nn.Module):
    """Copies its input, so that a block may add to the copy in place, which per-sample gradients do not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def check_per_sample_gradients(model: nn.Module, images: Tensor) -> None:
    """Raise `UsageError` unless Opacus' per-sample gradients of the model agree with those of single samples.

    For some layers Opacus computes wrong gradients. Clipping would then bound the wrong thing, and ε would be false.
    """
    from opacus import GradSampleModule

    copy, images = deepcopy(model).double().train(), images.double().requires_grad_()
    for module in copy.modules():  # Opacus needs layers in train mode, but dropout would differ between two passes
        if not any(True for _ in module.parameters()):
            module.eval()
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    expected = []
    for k in range(len(images)):
        copy.zero_grad()
        cross_entropy(copy(images[k : k + 1]), labels[k : k + 1]).backward()
        expected.append({name: p.grad for name, p in copy.named_parameters() if p.grad is not None})
        copy.zero_grad(set_to_none=True)
    hooked = GradSampleModule(copy, strict=False, loss_reduction="sum")
    cross_entropy(hooked(images), labels, reduction="sum").backward()
    for name, p in copy.named_parameters():
        for k, gradients in enumerate(expected):
            if name in gradients and not _close(p.grad_sample[k], gradients[name]):  # type: ignore[attr-defined]
                raise UsageError(
                    f"dp_noise is not possible with this architecture: the per-sample gradients of {name} are wrong "
                    "(a limit of Opacus); use another model, such as a ResNet"
                )


def _close(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).norm() <= 1e-6 * two.norm() + 1e-12)


def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε at δ after Poisson-sampled Gaussian steps.

    >>> round(epsilon(1.0, 0.05, 100, 1e-5), 2)
    3.5
    """
    return composed_epsilon(((noise, rate, steps),), delta)


@lru_cache(maxsize=4096)
def composed_epsilon(releases: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """ε at δ of several releases together: noise multiplier, sampling rate and steps of each.

    Computing it takes a second, and a site asks for the same one several times in a round.
    """
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    made = [release for release in releases if release[2]]
    for noise, rate, steps in made:
        step = dp_accounting.PoissonSampledDpEvent(min(rate, 1.0), dp_accounting.GaussianDpEvent(noise))
        accountant.compose(step, steps)
    return float(accountant.get_epsilon(delta)) if made else 0.0
