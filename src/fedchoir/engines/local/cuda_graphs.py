"""The fast trainer on a GPU: each kind of training step and forward pass is captured as a CUDA graph and replayed.

A replay costs one launch instead of a thousand, and nothing is read back from the device. A captured step may depend
only on the batch, the client's own tensors and the settings. A loss that reads the number of the round is captured
again every round. What cannot be captured (a QR or SVD in the loss, a model that reads values back) runs eagerly, with
the same numbers and a note.
"""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedchoir.core.client import Client
from fedchoir.core.training import Batch, EagerTrainer, Loss, new_optimizer
from fedchoir.engines.local.fused.deferred_weight_grads import deferred_weight_gradients

Run = Callable[[], None]
Capture = Callable[[Run], Run]
"""Takes a function without arguments and returns its replay."""

Forward = Callable[[Tensor], tuple[Tensor, ...]]
"""A forward pass without gradients."""

Key = tuple[Hashable, ...]
"""What two steps, passes or optimizers must have in common to be one; a client's index comes first."""

WARM_UPS = 2  # before a capture cuDNN must choose its algorithms and optimizers must create their state


class GraphCapture:
    """Captures what a function launches as a CUDA graph.

    All graphs share one memory pool, so that they need the memory of the largest. They never run at the same time, and
    what must outlast a replay (losses, outputs, weights) is outside the pool.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph.replay


@dataclass
class _CapturedStep:
    """A captured training step: its inputs are at fixed addresses, and so is its loss."""

    batch: Batch
    loss: Tensor
    replay: Run
    addresses: int = 0  # a hash over the client's stored tensors
    round: int | None = None  # the only one in which it is valid
    used: int = 0  # the last round in which it was replayed

    def __call__(self, batch: Batch) -> Tensor:
        for static, new in zip(_tensors(self.batch), _tensors(batch), strict=True):
            static.copy_(new, non_blocking=True)
        self.replay()
        return self.loss


@dataclass
class _CapturedForward:
    """A captured forward pass. The next replay overwrites its outputs."""

    inputs: Tensor
    outputs: tuple[Tensor, ...]
    replay: Run

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        self.inputs.copy_(inputs, non_blocking=True)
        self.replay()
        return tuple(t.clone() for t in self.outputs)


class ForwardGraphs:
    """Forward passes by kind. The first pass of a kind runs eagerly and the second is captured: most occur once or
    often."""

    def __init__(self, capture: Capture, impossible: Callable[[Key, RuntimeError], None]) -> None:
        """``impossible`` is called with what cannot be captured, and why."""
        self._capture, self._report = capture, impossible
        self._seen: set[Key] = set()
        self.captured: dict[Key, _CapturedForward] = {}
        self.impossible: set[Key] = set()

    def __call__(self, kind: Key, forward: Forward, inputs: Tensor) -> tuple[Tensor, ...]:
        if kind in self._seen and kind not in self.captured and kind not in self.impossible:
            try:
                self.captured[kind] = self._captured(forward, inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.impossible.add(kind)
                self._report(kind, error)
        self._seen.add(kind)
        captured = self.captured.get(kind)
        return captured(inputs) if captured else forward(inputs)

    def release(self, client: int) -> None:
        self._seen = {key for key in self._seen if key[0] != client}
        self.captured = _of_others(self.captured, client)
        self.impossible = {key for key in self.impossible if key[0] != client}

    def _captured(self, forward: Forward, inputs: Tensor) -> _CapturedForward:
        static = inputs.clone(memory_format=torch.preserve_format)
        with _rng_unchanged(inputs.device):
            outputs = tuple(torch.empty_like(t) for t in forward(static))  # also warms up

        def run() -> None:
            for output, new in zip(outputs, forward(static), strict=True):
                output.copy_(new)

        return _CapturedForward(static, outputs, self._capture(run))


@dataclass
class CudaGraphTrainer:
    """A `Trainer` that captures and replays. Optimizers are reset instead of rebuilt."""

    capture: Capture = field(default_factory=GraphCapture)
    eager: EagerTrainer = field(default_factory=EagerTrainer)
    _steps: dict[Key, _CapturedStep] = field(default_factory=dict)
    _optimizers: dict[Key, Optimizer] = field(default_factory=dict)
    _impossible: set[Key] = field(default_factory=set)
    _rounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each client, the round in which it trained before this one, and the one in which it trained last."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._forwards = ForwardGraphs(
            self.capture, lambda kind, error: self._note(f"model {kind[1]}: a forward pass", error)
        )

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        key = (client.index, name, algorithm, weight_decay, momentum)
        if key not in self._optimizers:
            on_gpu = client.device.type == "cuda"
            rate = torch.tensor(lr, device=client.device, dtype=torch.float32 if on_gpu else torch.float64)
            self._optimizers[key] = new_optimizer(
                algorithm, client.parameter_groups(), lr=rate, weight_decay=weight_decay, momentum=momentum,
                capturable=on_gpu,
            )  # fmt: skip
        optimizer = self._optimizers[key]
        optimizer._optimizer_step_post_hooks.clear()  # captured steps include them
        for group in optimizer.param_groups:
            group["lr"].fill_(lr * group["lr_factor"])
        for tensor in _optimizer_tensors(optimizer):
            tensor.zero_()
        return optimizer

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        total = torch.zeros((), device=client.device)
        count = 0
        before, last = self._rounds.get(client.index, (client.round, client.round))
        self._rounds[client.index] = (before if last == client.round else last, client.round)
        addresses = hash(tuple(t.data_ptr() for t in client.memory.tensors()))
        for batch in batches:
            step = self._step(client, optimizer, loss, batch, addresses)
            total += step(batch) if step else self.eager.train(client, optimizer, loss, [batch])
            count += 1
        return total / max(count, 1)

    def forward(self, client: Client, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """A captured pass uses the current weights: their addresses do not change while a client is active."""
        kind = (client.index, client.model.name, client.model, _layer_modes(client), tuple(inputs.shape), inputs.dtype)
        h, z = self._forwards(kind, client.features_and_logits, inputs)
        return h, z

    def accelerated(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        graphs = ForwardGraphs(self.capture, lambda kind, error: self._note("a teacher's forward pass", error))

        def forward(inputs: Tensor) -> Tensor:
            return graphs((tuple(inputs.shape), inputs.dtype), lambda static: (function(static),), inputs)[0]

        return forward

    def release(self, client: Client) -> None:
        self._forwards.release(client.index)
        self._steps = _of_others(self._steps, client.index)
        self._optimizers = _of_others(self._optimizers, client.index)
        self._impossible = {key for key in self._impossible if key[0] != client.index}
        self._rounds.pop(client.index, None)

    def _step(
        self, client: Client, optimizer: Optimizer, loss: Loss, batch: Batch, addresses: int
    ) -> _CapturedStep | None:
        """The captured step for this kind of batch; None if it cannot be captured. It is valid while the client's
        stored tensors stay at their addresses and, if its loss read the number of the round, for one round."""
        kind = _step_key(client, optimizer, loss, batch)
        if kind is None or kind in self._impossible:
            return None
        step = self._steps.get(kind)
        if step is not None and step.addresses == addresses and step.round in (None, client.round):
            step.used = client.round
            return step
        self._drop_old_steps(client)
        client.round_was_read = False
        try:
            step = self._captured(client, optimizer, loss, batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._impossible.add(kind)
            self._note(f"model {client.model.name}: a training step", error)
            return None
        step.addresses, step.round = addresses, client.round if client.round_was_read else None
        step.used = client.round
        self._steps[kind] = step
        return step

    def _drop_old_steps(self, client: Client) -> None:
        """Forget the client's steps that were not replayed in this round or the last one of the client: batches of a
        method may change their size from round to round, and every graph holds memory."""
        before, _ = self._rounds[client.index]
        old = {kind for kind, step in self._steps.items() if kind[0] == client.index and step.used < before}
        self._steps = {kind: step for kind, step in self._steps.items() if kind not in old}

    def _note(self, what: str, error: RuntimeError) -> None:
        """Say once that something runs without a CUDA graph."""
        start = f"{what} cannot be captured as a CUDA graph and runs step by step, with the same numbers"
        if not any(note.startswith(start) for note in self.notes):
            self.notes.append(f"{start} ({(str(error).splitlines() or ['no reason given'])[0]})")

    def _captured(self, client: Client, optimizer: Optimizer, loss: Loss, batch: Batch) -> _CapturedStep:
        static = Batch(batch.inputs.clone(), batch.labels.clone(), {k: t.clone() for k, t in batch.targets.items()})
        value = torch.zeros((), device=client.device)

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            result = loss(client, static)
            with deferred_weight_gradients(client.device):
                result.backward()
            optimizer.step()
            value.copy_(result.detach())

        changing = [*client.model.state_dict().values(), *client.modules.state_dict().values()]
        before = [(t, t.detach().clone()) for t in [*changing, *_optimizer_tensors(optimizer)]]
        try:
            with _rng_unchanged(client.device):
                for _ in range(WARM_UPS):
                    run()
        finally:
            _undo(before, optimizer)
        return _CapturedStep(static, value, self.capture(run))


def _step_key(client: Client, optimizer: Optimizer, loss: Loss, batch: Batch) -> Key | None:
    """What two steps must have in common to be one. None for a loss that is no method of an object: a closure may
    depend on anything."""
    function, owner = getattr(loss, "__func__", None), getattr(loss, "__self__", None)
    if function is None:
        return None
    shapes = tuple((tuple(t.shape), t.dtype) for t in _tensors(batch))
    return (client.index, id(optimizer), function, id(owner), tuple(sorted(batch.targets)), shapes)


def _layer_modes(client: Client) -> Key:
    """The modes of the model's layers, which a captured pass fixes."""
    return tuple((m.training, getattr(m, "track_running_stats", None)) for m in client.model.modules())


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.inputs, batch.labels, *(batch.targets[name] for name in sorted(batch.targets))]


def _optimizer_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [t for slots in optimizer.state.values() for t in slots.values() if isinstance(t, Tensor)]


def _of_others(captured: dict[Key, Any], client: int) -> dict[Key, Any]:
    return {key: value for key, value in captured.items() if key[0] != client}


def _rng_unchanged(device: torch.device) -> AbstractContextManager[None]:
    """Restores the random state at the end: a resumed run captures in another round than the one that it continues."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@torch.no_grad()
def _undo(before: list[tuple[Tensor, Tensor]], optimizer: Optimizer) -> None:
    """Undo the warm-up. Optimizer state that it created becomes zero, which is the initial state."""
    known = {id(t) for t, _ in before}
    for tensor, copy in before:
        tensor.copy_(copy)
    for tensor in _optimizer_tensors(optimizer):
        if id(tensor) not in known:
            tensor.zero_()
