"""The fast path on a GPU: each kind of training step, and of pass, is captured once as a CUDA graph and then replayed.

A replay costs one launch instead of a thousand, and the host reads nothing back. What a captured step may depend on is
what a client's function may depend on between real sites too: the batch, the client's own tensors, and the settings.
Where a loss looks at the number of the round, or where capture is impossible (a QR or SVD in the loss), the step is
captured anew or run plainly; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedchoir.core.client import Client
from fedchoir.core.training import Batch, EagerTrainer, Loss, new_optimizer
from fedchoir.engines.local.fused.deferred_weight_grads import weights_aside

Run = Callable[[], None]
Recorder = Callable[[Run], Run]
"""Takes a function without arguments, gives one that does the same again."""

Key = tuple[Hashable, ...]
"""What two steps, or optimisers, must share to be one; the number of the client comes first."""

WARM_UPS = 2  # cuDNN chooses its algorithms and optimisers make their state before anything can be captured


class CudaRecorder:
    """Captures what a function launches as a CUDA graph.

    All graphs of a process share their memory, so that it is that of the largest: they are never replayed at once, and
    what is to outlast a replay (losses, answers, weights) lies outside.
    """

    def __init__(self) -> None:
        self._pool: Any = None  # torch calls it by a name of its own

    def __call__(self, run: Run) -> Run:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph.replay


def record_plainly(run: Run) -> Run:
    """No capture: the step is run again. For tests of everything else on a CPU."""
    return run


@dataclass
class _Step:
    """One captured step: its inputs lie at fixed addresses, its loss appears at another."""

    batch: Batch
    loss: Tensor
    replay: Run
    places: int = 0
    round: int | None = None

    def __call__(self, batch: Batch) -> Tensor:
        for mine, new in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            mine.copy_(new, non_blocking=True)
        self.replay()
        return self.loss


Ask = Callable[[Tensor], tuple[Tensor, ...]]
"""A pass over images without learning."""


@dataclass
class _Pass:
    """A captured pass; its outputs are overwritten by the next one."""

    images: Tensor
    outputs: tuple[Tensor, ...]
    replay: Run

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        self.images.copy_(images, non_blocking=True)
        self.replay()
        return tuple(t.clone() for t in self.outputs)


class Passes:
    """Passes of some kinds. The first of a kind is run plainly and the second captured: most come once, or often."""

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._seen: set[Key] = set()
        self.captured: dict[Key, _Pass] = {}
        self.impossible: set[Key] = set()

    def __call__(self, kind: Key, ask: Ask, images: Tensor) -> tuple[Tensor, ...]:
        if kind in self._seen and kind not in self.captured and kind not in self.impossible:
            try:
                self.captured[kind] = self._capture(ask, images)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self.impossible.add(kind)
        self._seen.add(kind)
        known = self.captured.get(kind)
        return known(images) if known else ask(images)

    def release(self, client: int) -> None:
        self._seen = {key for key in self._seen if key[0] != client}
        self.captured = {key: known for key, known in self.captured.items() if key[0] != client}
        self.impossible = {key for key in self.impossible if key[0] != client}

    def _capture(self, ask: Ask, images: Tensor) -> _Pass:
        static = images.clone(memory_format=torch.preserve_format)
        with same_draws_after(images.device):
            outputs = tuple(torch.empty_like(t) for t in ask(static))  # warms up, too

        def run() -> None:
            for mine, new in zip(outputs, ask(static), strict=True):
                mine.copy_(new)

        return _Pass(static, outputs, self._record(run))


@dataclass
class CudaGraphTrainer:
    """A `Trainer` that captures steps. Optimisers are kept and set back to their start instead of being rebuilt."""

    record: Recorder = field(default_factory=CudaRecorder)
    plain: EagerTrainer = field(default_factory=EagerTrainer)
    _steps: dict[Key, _Step] = field(default_factory=dict)
    _optimizers: dict[Key, Optimizer] = field(default_factory=dict)
    _impossible: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._passes = Passes(self.record)

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        key = (client.index, name, algorithm, weight_decay, momentum)
        if key not in self._optimizers:
            on_gpu = client.device.type == "cuda"
            rate = torch.tensor(lr, device=client.device, dtype=torch.float32 if on_gpu else torch.float64)
            self._optimizers[key] = new_optimizer(
                algorithm, client.parameters(), lr=rate, weight_decay=weight_decay, momentum=momentum, capturable=on_gpu
            )
        optimizer = self._optimizers[key]
        optimizer._optimizer_step_post_hooks.clear()  # captured steps have them inside
        for group in optimizer.param_groups:
            group["lr"].fill_(lr)
        for slots in optimizer.state.values():
            for tensor in slots.values():
                if isinstance(tensor, Tensor):
                    tensor.zero_()
        return optimizer

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        total = torch.zeros((), device=client.device)
        count = 0
        places = hash(tuple(t.data_ptr() for t in client.memory.tensors()))
        for batch in batches:
            step = self._step(client, optimizer, loss, batch, places)
            total += step(batch) if step else self.plain.train(client, optimizer, loss, [batch])
            count += 1
        return total / max(count, 1)

    def forward(self, client: Client, images: Tensor) -> tuple[Tensor, Tensor]:
        """A pass that was captured sees the weights of today, which stay in their place while clients are awake."""
        kind = (client.index, client.model, modes_of(client), tuple(images.shape), images.dtype)
        h, z = self._passes(kind, client.features_and_logits, images)
        return h, z

    def accelerated(self, ask: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        passes = Passes(self.record)

        def forward(images: Tensor) -> Tensor:
            return passes((tuple(images.shape), images.dtype), lambda static: (ask(static),), images)[0]

        return forward

    def release(self, client: Client) -> None:
        self._passes.release(client.index)
        self._steps = {key: step for key, step in self._steps.items() if key[0] != client.index}
        self._optimizers = {key: o for key, o in self._optimizers.items() if key[0] != client.index}
        self._impossible = {key for key in self._impossible if key[0] != client.index}

    def _step(self, client: Client, optimizer: Optimizer, loss: Loss, batch: Batch, places: int) -> _Step | None:
        """The captured step for this kind of batch; None where it cannot be captured. It is good as long as what the
        client remembers stays in its place, and, if its loss looked at the number of the round, for one round."""
        kind = key_of(client, optimizer, loss, batch)
        if kind is None or kind in self._impossible:
            return None
        known = self._steps.get(kind)
        if known is not None and known.places == places and known.round in (None, client.round):
            return known
        client.round_was_read = False
        try:
            step = self._capture(client, optimizer, loss, batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._impossible.add(kind)
            return None
        step.places, step.round = places, client.round if client.round_was_read else None
        self._steps[kind] = step
        return step

    def _capture(self, client: Client, optimizer: Optimizer, loss: Loss, batch: Batch) -> _Step:
        static = Batch(batch.images.clone(), batch.labels.clone(), {k: t.clone() for k, t in batch.targets.items()})
        value = torch.zeros((), device=client.device)

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            result = loss(client, static)
            with weights_aside(client.device):
                result.backward()
            optimizer.step()
            value.copy_(result.detach())

        before = keep(client, optimizer)
        with same_draws_after(client.device):
            for _ in range(WARM_UPS):
                run()
        release_memory(client, optimizer, before)
        return _Step(static, value, self.record(run))


def key_of(client: Client, optimizer: Optimizer, loss: Loss, batch: Batch) -> Key | None:
    """What two steps must share to be one: the loss of the same method, the same shapes, the same optimiser.

    Only methods' own functions are captured: a function made on the spot may hold anything.
    """
    function, owner = getattr(loss, "__func__", None), getattr(loss, "__self__", None)
    if function is None:
        return None
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_of(batch))
    return (client.index, id(optimizer), function, id(owner), tuple(sorted(batch.targets)), shapes)


def modes_of(client: Client) -> Key:
    """How the model's layers are set: what a captured pass has fixed."""
    return tuple((m.training, getattr(m, "track_running_stats", None)) for m in client.model.modules())


def tensors_of(batch: Batch) -> list[Tensor]:
    return [batch.images, batch.labels, *(batch.targets[name] for name in sorted(batch.targets))]


def same_draws_after(device: torch.device) -> AbstractContextManager[None]:
    """Dropout and the like draw the same after this block as if it had not been: a resumed run captures its steps in
    another round than the one that it continues."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def keep(client: Client, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Copies of all that a warm-up step would change."""
    state = [t for slots in optimizer.state.values() for t in slots.values() if isinstance(t, Tensor)]
    own = [*client.model.state_dict().values(), *client.modules.state_dict().values()]
    return [(t, t.detach().clone()) for t in [*own, *state]]


def release_memory(client: Client, optimizer: Optimizer, before: list[tuple[Tensor, Tensor]]) -> None:
    """Undo the warm-up. Optimiser state that it created was empty before: zeros mean the same."""
    known = {id(t) for t, _ in before}
    with torch.no_grad():
        for tensor, copy in before:
            tensor.copy_(copy)
        for slots in optimizer.state.values():
            for tensor in slots.values():
                if isinstance(tensor, Tensor) and id(tensor) not in known:
                    tensor.zero_()
