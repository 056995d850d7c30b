"""Record-level differential privacy of the local phase: what leaves a site depends little on any one private image.

Each step draws every image with the same chance (Poisson), clips each image's gradient and adds noise (Opacus).
dp-accounting's privacy-loss distributions add up what the steps of all rounds cost. Everything that a client sends is
computed from its model and public images, so it costs nothing more. BatchNorm mixes images, so it becomes GroupNorm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch, EagerTrainer, Loss, new_optimizer
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.core.client import Client

METHODS = ("fccl", "fccl+", "fedavg", "feddf", "fedmd", "fedntd", "solo")
"""Methods whose local loss is a mean over single images, and that send nothing else computed from private images."""


def check_method(name: str, params: Settings) -> None:
    """Refuse methods for which the proof would not hold."""
    if params.dp_noise and (name not in METHODS or getattr(params, "regulariser", "") == "ewc"):
        raise UsageError(
            f"dp_noise = {params.dp_noise:g} is not possible with {name}: its local loss or what it sends is not a "
            f"function of single images; it should be 0, or one of {', '.join(METHODS)}"
        )


def without_batchnorm(model: nn.Module) -> None:
    """Put GroupNorm with up to 32 groups in the place of every BatchNorm, in the model itself."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                norm = nn.GroupNorm(math.gcd(32, child.num_features), child.num_features, eps=child.eps)
                setattr(parent, name, nn.Sequential(norm, Copy()))
            if getattr(child, "inplace", False):
                setattr(child, "inplace", False)  # noqa: B010 - not every module has it


class Copy(nn.Module):
    """A copy of what comes in: a block may then add to it in place, which per-image gradients do not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class PrivateTrainer(EagerTrainer):
    """Plain steps on public images, private ones on the client's own."""

    def __init__(self, client: Client) -> None:
        # Opacus' gradients of convolutions are wrong (not just imprecise) where channels lie last in memory.
        client.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        plain = new_optimizer(algorithm, client.parameters(), lr=lr, weight_decay=weight_decay, momentum=momentum)
        if name != "local":
            return plain
        from opacus.optimizers import DPOptimizer

        s = client.settings
        noisy: Optimizer = DPOptimizer(
            plain,
            noise_multiplier=s.dp_noise,
            max_grad_norm=s.dp_clip,
            expected_batch_size=min(s.local_batch, len(client.private)),
            # a phase may be made of several fits: none of them repeats the noise of another
            generator=client.secret_generator("noise", sum(map(len, client._losses.values()))),
        )
        return noisy

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        if not isinstance(optimizer, DPOptimizer):
            return super().train(client, optimizer, loss, batches)
        hooked = GradSampleModule(client.model, strict=False)
        try:
            total, count = torch.zeros((), device=client.device), 0
            for batch in batches:
                optimizer.zero_grad(set_to_none=True)
                with (
                    warnings.catch_warnings()
                ):  # images need no gradient: the hook of the first layer says so each time
                    warnings.filterwarnings("ignore", message="Full backward hook is firing")
                    total += self._gradients(client, loss, batch)
                optimizer.step()
                count += 1
            return total / max(count, 1)
        finally:
            for p in client.model.parameters():
                p.grad = None
            hooked._close()

    def _gradients(self, client: Client, loss: Loss, batch: Batch) -> Tensor:
        """A gradient for each image; none for a draw without images, to which noise is added all the same."""
        if not len(batch):
            for p in client.model.parameters():
                p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]
            return torch.zeros((), device=client.device)
        value = loss(client, replace(batch, images=batch.images.contiguous()))
        value.backward()
        return value.detach()


# -- what it costs -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε for δ after Poisson-sampled Gaussian steps.

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


def steps_of(params: Settings, client: int, images: int, rounds: int) -> int:
    """Private steps that a client has taken after so many rounds, if it took part in all of them."""
    each = math.ceil(images / params.local_batch)
    return each * (params.pretrain_epochs + rounds * params.epochs_of(client)) if rounds else 0


def spent(params: Settings, images: Sequence[int], rounds: int) -> list[float]:
    """Each client's ε after so many rounds."""
    return [
        epsilon(
            params.dp_noise, min(1.0, params.local_batch / max(n, 1)), steps_of(params, k, n, rounds), params.dp_delta
        )
        for k, n in enumerate(images)
    ]


def affordable(params: Settings, images: Sequence[int], rounds: int) -> int:
    """How many of the rounds keep every client within ``dp_epsilon``."""
    if not params.dp_noise or params.dp_epsilon is None:
        return rounds
    low, high = 0, rounds
    while low < high:
        middle = (low + high + 1) // 2
        if max(spent(params, images, middle)) <= params.dp_epsilon:
            low = middle
        else:
            high = middle - 1
    return low
