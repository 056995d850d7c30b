"""Differential privacy: models without BatchNorm, and the ε of Poisson-sampled Gaussian steps (dp-accounting's PLD)."""

from __future__ import annotations

import math
from functools import lru_cache

from torch import Tensor, nn


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


@lru_cache(maxsize=4096)
def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε at δ after Poisson-sampled Gaussian steps.

    >>> round(epsilon(1.0, 0.05, 100, 1e-5), 2)
    3.5
    """
    import dp_accounting
    from dp_accounting import pld

    if steps == 0:
        return 0.0
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(min(rate, 1.0), dp_accounting.GaussianDpEvent(noise))
    accountant.compose(step, steps)
    return float(accountant.get_epsilon(delta))
