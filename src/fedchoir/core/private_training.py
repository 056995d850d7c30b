"""DP-SGD in the local phase: per-sample gradients are clipped and noised (Opacus), and the cost is accounted for.

Every step draws each sample with the same probability (Poisson sampling). A client's payloads are computed from its
model and public samples, so they cost nothing more. BatchNorm mixes samples and is replaced by GroupNorm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedchoir.core.training import Batch, EagerTrainer, Loss, new_optimizer
from fedchoir.privacy.dp import check_per_sample_gradients, epsilon

if TYPE_CHECKING:
    from fedchoir.core.client import Client
    from fedchoir.core.interfaces import FederatedMethod


_checked: set[tuple[object, ...]] = set()  # architectures whose per-sample gradients are right


class PrivateTrainer(EagerTrainer):
    """Ordinary steps on public samples, DP-SGD steps on private ones."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.private_steps = 0  # noisy steps so far
        # Opacus computes wrong gradients of convolutions for tensors in channels-last layout.
        client.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        architecture = tuple(
            (name, type(m), *map(tuple, map(torch.Tensor.size, m.parameters(False))))
            for name, m in client.model.named_modules()
        )
        if architecture not in _checked:
            images, _ = next(client.private_chunks(2))
            check_per_sample_gradients(client.model, images.contiguous())
            _checked.add(architecture)

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        plain = new_optimizer(algorithm, client.parameter_groups(), lr=lr, weight_decay=weight_decay, momentum=momentum)
        if name != "local":
            return plain
        from opacus.optimizers import DPOptimizer

        class NoisyOptimizer(DPOptimizer):
            def add_noise(self) -> None:
                for p in self.params:
                    p.grad = (p.summed_grad + noise(p.shape).to(p)).view_as(p)

        s = client.settings
        noise = noise_source(client, std=s.dp_noise * s.dp_clip)
        noisy: Optimizer = NoisyOptimizer(
            plain,
            noise_multiplier=s.dp_noise,
            max_grad_norm=s.dp_clip,
            expected_batch_size=min(s.local_batch, len(client.private)),
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
                with warnings.catch_warnings():  # images need no gradient, and the first layer's hook warns every time
                    warnings.filterwarnings("ignore", message="Full backward hook is firing")
                    total += self._gradients(client, loss, batch)
                optimizer.step()
                count += 1
            self.private_steps += count
            return total / max(count, 1)
        finally:
            for p in client.model.parameters():
                p.grad = None
            hooked._close()

    def _gradients(self, client: Client, loss: Loss, batch: Batch) -> Tensor:
        """Per-sample gradients; none for an empty draw, to which noise is added all the same."""
        if not len(batch):
            for p in client.model.parameters():
                p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]
            return torch.zeros((), device=client.device)
        value = loss(client, replace(batch, inputs=batch.inputs.contiguous()))
        value.backward()
        return value.detach()


def noise_source(client: Client, std: float) -> Callable[[Sequence[int]], Tensor]:
    """Gaussian noise on the CPU: from the operating system at a real site, derived from the seed in a simulation."""
    if client.secure_random is not None:
        return partial(client.secure_random.normal, std=std)
    # A phase may call `Client.train` several times: no two calls may share their noise.
    generator = client.secret_generator("noise", client.trainings)
    return lambda shape: torch.normal(mean=0.0, std=std, size=tuple(shape), generator=generator)


def private_steps(method: FederatedMethod, client: int, samples: int, rounds: int) -> int:
    """DP-SGD steps of a client that took part in the first ``rounds`` rounds."""
    return math.ceil(samples / method.params.local_batch) * method.private_epochs(client, rounds) if rounds else 0


def spent(method: FederatedMethod, samples: Sequence[int], rounds: int) -> list[float]:
    """Each client's ε after ``rounds`` rounds."""
    params = method.params
    return [
        epsilon(
            params.dp_noise,
            min(1.0, params.local_batch / max(n, 1)),
            private_steps(method, k, n, rounds),
            params.dp_delta,
        )
        for k, n in enumerate(samples)
    ]


def affordable_rounds(method: FederatedMethod, samples: Sequence[int], rounds: int) -> int:
    """How many of the rounds keep every client's ε within ``dp_epsilon``."""
    params = method.params
    if not params.dp_noise or params.dp_epsilon is None:
        return rounds
    low, high = 0, rounds
    while low < high:
        middle = (low + high + 1) // 2
        if max(spent(method, samples, middle)) <= params.dp_epsilon:
            low = middle
        else:
            high = middle - 1
    return low
