"""A participant: its model, its private data, its memory, and the few things it can do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedchoir.data.augment import augment
from fedchoir.data.images import ImageSet, normalise
from fedchoir.federation.phases import PublicBatch
from fedchoir.federation.public import PublicView
from fedchoir.federation.settings import Settings
from fedchoir.federation.training import Batch, EagerTrainer, Loss, Trainer
from fedchoir.models import VisionModel
from fedchoir.rng import generator

EVAL_BATCH = 1000
State = dict[str, Tensor]


@dataclass(frozen=True)
class Frozen:
    """What a frozen model says about each private image, as a target for `Client.fit`.

    In eval mode, and without augmentation, it is computed once for all images; otherwise batch by batch.
    """

    weights: Mapping[str, Tensor]
    output: Literal["logits", "features"] = "logits"
    batchnorm: Literal["eval", "train"] = "eval"


class Client:
    """One participant. All of its state is in ``model``, ``parts``, ``memory`` and ``optimizers``."""

    def __init__(
        self,
        index: int,
        name: str,
        model: VisionModel,
        private: ImageSet,
        *,
        settings: Settings,
        seed: int,
        rounds: int,
        public: PublicView | None = None,
        parts: Mapping[str, nn.Module] | None = None,
        device: torch.device | None = None,
        precision: str = "fp32",
        trainer: Trainer | None = None,
    ) -> None:
        self.index = index
        self.name = name
        self.device = device or torch.device("cpu")
        self.model: VisionModel = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parts = nn.ModuleDict(dict(parts or {})).to(self.device)
        self.private = private.to(self.device)
        self.public = public
        self.settings = settings
        self.seed = seed
        self.rounds = rounds
        self.precision = precision
        self.round = 0
        self.phase = ""
        self.memory: dict[str, State | Tensor] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self._losses: dict[str, list[Tensor]] = {}
        self.trainer: Trainer = trainer or EagerTrainer()

    # -- what the model says -------------------------------------------------------------------------------------

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features B×d and logits B×C of one pass, in float32 whatever the precision of the pass."""
        with self._autocast():
            h, z = self.model.both(images)
        return h.float(), z.float()

    def logits(self, images: Tensor) -> Tensor:
        return self.both(images)[1]

    def look(self, batch: PublicBatch) -> Tensor:
        """The images of a public batch, the same for every client."""
        if self.public is None:
            raise RuntimeError(f"client {self.name} has no public set")
        return self.public.images(batch)

    @torch.no_grad()
    def say(self, batch: PublicBatch) -> tuple[Tensor, Tensor]:
        """Features and logits on a public batch, normalised by its own statistics as in training, learning nothing:
        BatchNorm's running statistics move once, when the client learns from the batch, and not here."""
        self.model.train()
        with still_statistics(self.model):
            return self.both(self.look(batch))

    # -- learning ------------------------------------------------------------------------------------------------

    def learn(self, batch: PublicBatch, loss: Loss, **targets: Tensor) -> None:
        """One optimiser step on a public batch."""
        settings = self.settings
        if settings.public_optimizer == "batch":
            self.optimizers.pop("public", None)
        if "public" not in self.optimizers:
            lr = settings.lr(settings.public_lr, self.round, self.rounds)
            self.optimizers["public"] = self._optimizer(settings.public_algorithm, lr, settings.public_weight_decay)
        self.model.train()
        images = self.look(batch)
        lesson = Batch(images, torch.empty(0, dtype=torch.int64, device=self.device), targets)
        self._record("public", self.trainer.train(self, self.optimizers["public"], loss, [lesson]))

    def fit(
        self,
        loss: Loss,
        *,
        epochs: int | None = None,
        first: int = 0,
        phase: str = "local",
        **targets: Frozen | Tensor,
    ) -> None:
        """Epochs over the private data with a fresh optimiser. ``targets`` come with every batch by their name:
        tensors with one row per private image, or what a `Frozen` model says about it. ``first`` numbers the first
        epoch, for a phase that is made of several fits."""
        epochs = self.settings.epochs_of(self.index) if epochs is None else epochs
        if epochs == 0:
            return
        s = self.settings
        lr = s.lr(s.local_lr, self.round, self.rounds)
        optimizer = self._optimizer(s.optimizer, lr, s.local_weight_decay, s.momentum)
        sources = {name: self._source(target) for name, target in targets.items()}
        self.model.train()
        self._record(
            phase,
            self.trainer.train(self, optimizer, loss, self._private_batches(range(first, first + epochs), sources)),
        )

    def parameters(self) -> list[nn.Parameter]:
        return [*self.model.parameters(), *self.parts.parameters()]

    def _optimizer(self, algorithm: str, lr: float, weight_decay: float, momentum: float = 0.0) -> Optimizer:
        if algorithm == "sgd":
            return torch.optim.SGD(self.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
        return torch.optim.Adam(self.parameters(), lr=lr, weight_decay=weight_decay, fused=True)

    def report(self) -> dict[str, float]:
        """The mean loss of each phase since the last report. This is where the host waits for the device."""
        means = {f"{phase}_loss": float(torch.stack(values).mean()) for phase, values in self._losses.items()}
        self._losses.clear()
        return means

    def _record(self, phase: str, loss: Tensor) -> None:
        self._losses.setdefault(phase, []).append(loss)

    # -- private data --------------------------------------------------------------------------------------------

    def _private_batches(self, epochs: range, sources: Mapping[str, Tensor | _Echo]) -> Iterator[Batch]:
        n, size = len(self.private), self.settings.local_batch
        for epoch in epochs:
            order = torch.randperm(n, generator=self._draw("private order", epoch)).to(self.device)
            for number, start in enumerate(range(0, n, size)):
                index = order[start : start + size]
                if len(index) < 2 and n > 1:
                    continue  # BatchNorm cannot normalise a single image
                images = self._private_images(index, epoch, number)
                targets = {k: v(images) if isinstance(v, _Echo) else v[index] for k, v in sources.items()}
                yield Batch(images, self.private.labels[index], targets)

    def _private_images(self, index: Tensor, epoch: int, number: int) -> Tensor:
        images = self.private.images[index]
        if self.settings.private_augment != "none":
            images = augment(images, self.settings.private_augment, self._draw("private view", epoch, number))
        return normalise(images, self.private.mean, self.private.std).contiguous(memory_format=torch.channels_last)

    def _draw(self, *labels: int | str) -> torch.Generator:
        return generator(self.seed, "client", self.index, self.round, self.phase, *labels)

    # -- other models: teachers, global and previous ones --------------------------------------------------------

    def snapshot(self) -> State:
        """A copy of the model's weights and buffers."""
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def recall(self, name: str) -> State:
        """Weights that a phase before this one put into ``memory``."""
        state = self.memory[name]
        assert isinstance(state, dict), f"{name} is a single tensor"
        return state

    def recall_tensor(self, name: str) -> Tensor:
        """A single tensor that a phase before this one put into ``memory``."""
        tensor = self.memory[name]
        assert isinstance(tensor, Tensor), f"{name} is a set of weights"
        return tensor

    def twin(self, weights: Mapping[str, Tensor]) -> VisionModel:
        """A second model with the given weights, without gradients, in eval mode. The weights are shared."""
        twin = deepcopy_structure(self.model)
        twin.load_state_dict(dict(weights), assign=True)
        return twin.requires_grad_(False).eval()

    def _source(self, target: Frozen | Tensor) -> Tensor | _Echo:
        if isinstance(target, Tensor):
            return target
        twin = self.twin(target.weights)
        if target.batchnorm == "train":
            # the running statistics of the shared weights must not move
            echo = _Echo(self, twin.train(), target.output)
            for module in twin.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = 0.0
            return echo
        echo = _Echo(self, twin, target.output)
        if self.settings.private_augment != "none":
            return echo
        return torch.cat([echo(images) for images, _ in self.private_chunks()])

    def private_chunks(self, size: int = EVAL_BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """The private images as they are, in order, with their labels."""
        for start in range(0, len(self.private), size):
            images = normalise(self.private.images[start : start + size], self.private.mean, self.private.std)
            yield (
                images.contiguous(memory_format=torch.channels_last),
                self.private.labels[start : start + size],
            )

    def survey(self, output: Literal["logits", "features"] = "logits") -> Tensor:
        """What the current model says about each private image, in eval mode, without augmentation."""
        self.model.eval()
        echo = _Echo(self, self.model, output)
        return torch.cat([echo(images) for images, _ in self.private_chunks()])

    def class_counts(self) -> Tensor:
        """How many private images each class has: C, int64."""
        classes = torch.arange(self.model.num_classes, device=self.device)
        return (self.private.labels.unsqueeze(1) == classes).sum(dim=0)

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that must survive between two phases, as flat named tensors."""
        flat = {f"model/{n}": t for n, t in self.model.state_dict().items()}
        flat |= {f"parts/{n}": t for n, t in self.parts.state_dict().items()}
        for name, value in self.memory.items():
            if isinstance(value, Tensor):
                flat[f"memory/{name}"] = value
            else:
                flat |= {f"memory/{name}/{n}": t for n, t in value.items()}
        for name, optimizer in self.optimizers.items():
            for number, slots in optimizer.state_dict()["state"].items():
                flat |= {f"optimizer/{name}/{number}/{slot}": t for slot, t in slots.items()}
        return flat

    def load(self, flat: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave (between rounds: optimisers do not outlive a round)."""
        groups: dict[str, State] = {"model": {}, "parts": {}, "memory": {}}
        for name, t in flat.items():
            kind, _, rest = name.partition("/")
            if kind in groups:
                groups[kind][rest] = t.to(self.device)
        self.model.load_state_dict(groups["model"])
        self.parts.load_state_dict(groups["parts"])
        self.memory = {}
        for name, t in groups["memory"].items():
            owner, _, rest = name.partition("/")
            if rest:
                slot = self.memory.setdefault(owner, {})
                assert isinstance(slot, dict)
                slot[rest] = t
            else:
                self.memory[owner] = t

    def begin(self, round_index: int) -> None:
        """Enter a round: the position from which all draws are derived; optimisers do not outlive a round."""
        if round_index != self.round:
            self.optimizers.clear()
        self.round = round_index

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


class _Echo:
    """A frozen model that answers batch by batch."""

    def __init__(self, client: Client, model: VisionModel, output: str) -> None:
        self._client, self._model, self._output = client, model, output

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        with self._client._autocast():
            h, z = self._model.both(images)
        return (z if self._output == "logits" else h).float()


def deepcopy_structure(model: VisionModel) -> VisionModel:
    """A copy of the module tree whose tensors are placeholders (to be assigned), so that no weights are copied."""
    memo = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return deepcopy(model, memo)


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm normalises by the batch but leaves its running statistics alone."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
