"""A participant: its model, its private data, its memory, and the few things it can do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedchoir.core.actions import PublicBatch
from fedchoir.core.batches import PrivateView, PublicView, Source
from fedchoir.core.client_state import Memory, State, flatten, restore
from fedchoir.core.evaluation import batch_for
from fedchoir.core.settings import Settings
from fedchoir.core.teachers import (
    Output,
    Teacher,
    TeacherOutput,
    deepcopy_structure,
    freeze_batchnorm_stats,
    frozen_batchnorm_stats,
)
from fedchoir.core.training import Batch, EagerTrainer, Loss, Trainer
from fedchoir.data.image.color_transforms import Recolor
from fedchoir.data.image.image_set import ImageSet
from fedchoir.models import VisionModel
from fedchoir.utils.rng import generator

__all__ = ["Client", "Teacher", "State", "deepcopy_structure", "frozen_batchnorm_stats"]


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
        modules: Mapping[str, nn.Module] | None = None,
        device: torch.device | None = None,
        precision: str = "fp32",
        trainer: Trainer | None = None,
    ) -> None:
        self.index = index
        self.name = name
        self.device = device or torch.device("cpu")
        self.model: VisionModel = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.modules = nn.ModuleDict(dict(modules or {})).to(self.device)
        self.private = private.to(self.device)
        self.public = public
        self.settings = settings
        self.seed = seed
        self.rounds = rounds
        self.precision = precision
        self._round = 0
        self.round_was_read = False
        self.phase = ""
        self.hostile = False  # a rehearsed attacker
        self.secret = ""  # known to the site alone, if it is a real one
        self.memory = Memory()
        self.optimizers: dict[str, Optimizer] = {}
        self._losses: dict[str, list[Tensor]] = {}
        self._notes: dict[str, Tensor] = {}
        self.trainer: Trainer = trainer or EagerTrainer()

    @property
    def round(self) -> int:
        """The number of the round. That it was read is noted: a captured training step is then good for one round."""
        self.round_was_read = True
        return self._round

    @round.setter
    def round(self, index: int) -> None:
        self._round = index

    # -- what the model says -------------------------------------------------------------------------------------

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features B×d and logits B×C of one pass, in float32 whatever the precision of the pass."""
        with self._autocast():
            h, z = self.model.features_and_logits(images)
        return h.float(), z.float()

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Feature map B×D×h×w, features and logits of one pass, in float32."""
        with self._autocast():
            m, h, z = self.model.stages(images)
        return m.float(), h.float(), z.float()

    def features(self, images: Tensor) -> Tensor:
        """Features B×d alone, in float32."""
        with self._autocast():
            return self.model.features(images).float()

    def run_module(self, name: str, x: Tensor) -> Tensor:
        """What one of the parts makes of ``x``, in float32."""
        with self._autocast():
            return self.modules[name](x).float()

    def logits(self, images: Tensor) -> Tensor:
        return self.features_and_logits(images)[1]

    def predict(self, images: Tensor) -> Tensor:
        """Logits, where nothing is to be learnt from them: the trainer may know a faster way."""
        return self.trainer.forward(self, images)[1]

    def classify(self, h: Tensor) -> Tensor:
        """Logits B×C of features B×d, in float32."""
        with self._autocast():
            return self.model.classify(h).float()

    def public_samples(self, batch: PublicBatch, recolor: Recolor | None = None) -> Tensor:
        """The images of a public batch, the same for every client that restyles them in the same way."""
        if self.public is None:
            raise RuntimeError(f"client {self.name} has no public set")
        return self.public.images(batch, recolor)

    def public_outputs(self, batch: PublicBatch, recolor: Recolor | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits on a public batch."""
        with self.batch_stats_frozen():
            return self.trainer.forward(self, self.public_samples(batch, recolor))

    @contextmanager
    def batch_stats_frozen(self) -> Iterator[None]:
        """The model normalises a batch by its own statistics, as in training, but learns nothing: BatchNorm's running
        statistics move once, when the client learns from the batch, and not here."""
        self.model.train()
        with torch.no_grad(), frozen_batchnorm_stats(self.model):
            yield

    # -- learning ------------------------------------------------------------------------------------------------

    def public_step(self, batch: PublicBatch, loss: Loss, recolor: Recolor | None = None, /, **targets: Tensor) -> None:
        """One optimiser step on a public batch."""
        settings = self.settings
        if settings.public_optimizer_lifetime == "batch":
            self.optimizers.pop("public", None)
        if "public" not in self.optimizers:
            self.optimizers["public"] = self.new_public_optimizer()
        self._train_mode()
        images = self.public_samples(batch, recolor)
        step_batch = Batch(images, torch.empty(0, dtype=torch.int64, device=self.device), targets)
        self.log_loss("public", self.trainer.train(self, self.optimizers["public"], loss, [step_batch]))

    def train(
        self,
        loss: Loss,
        *,
        epochs: int | None = None,
        first: int = 0,
        phase: str = "local",
        views: int = 1,
        recolor: Recolor | None = None,
        after_step: Callable[[Client], None] | None = None,
        **targets: Teacher | Tensor,
    ) -> None:
        """Epochs over the private data with a fresh optimiser. ``targets`` come with every batch by their name:
        tensors with one row per private image, or what a `Frozen` model says about it. ``first`` numbers the first
        epoch, for a phase that is made of several fits. With ``views`` = 2 a second augmentation of the images comes
        as ``batch["view2"]``, and so on. ``restyle`` changes the images after targets were asked about them.
        ``after_step`` is called after every optimiser step, on the device's own time: it must not wait for it."""
        epochs = self.settings.epochs_of(self.index) if epochs is None else epochs
        if epochs == 0:
            return
        s = self.settings
        lr = s.lr(s.local_lr, self.round, self.rounds)
        optimizer = self._optimizer("local", s.optimizer, lr, s.local_weight_decay, s.momentum)
        if after_step is not None:
            optimizer.register_step_post_hook(lambda *_: after_step(self))
        sources = {name: self._source(target) for name, target in targets.items()}
        self._train_mode()
        batches = self.private_view.batches(range(first, first + epochs), sources, views, recolor)
        self.log_loss(phase, self.trainer.train(self, optimizer, loss, batches))

    def _train_mode(self) -> None:
        self.model.train()
        self.modules.train()

    def parameters(self) -> list[nn.Parameter]:
        """What is learned: parts without gradient (a target network) are not."""
        return [p for p in (*self.model.parameters(), *self.modules.parameters()) if p.requires_grad]

    def _optimizer(self, name: str, algorithm: str, lr: float, weight_decay: float, momentum: float = 0.0) -> Optimizer:
        return self.trainer.optimizer(self, name, algorithm, lr=lr, weight_decay=weight_decay, momentum=momentum)

    def new_public_optimizer(self) -> Optimizer:
        """The public phase's optimiser at its start."""
        s = self.settings
        lr = s.lr(s.public_lr, self.round, self.rounds)
        return self._optimizer("public", s.public_optimizer, lr, s.public_weight_decay)

    def report(self) -> dict[str, float]:
        """The mean loss of each phase since the last report. This is where the host waits for the device."""
        means = {f"{phase}_loss": float(torch.stack(values).mean()) for phase, values in self._losses.items()}
        means |= {name: float(value) for name, value in self._notes.items()}
        self._losses.clear()
        self._notes.clear()
        return means

    def log_value(self, name: str, value: Tensor) -> None:
        """A number for the next report beside the losses, still on the device."""
        self._notes[name] = value

    def log_loss(self, phase: str, loss: Tensor) -> None:
        """The mean loss of some steps, for the next report."""
        self._losses.setdefault(phase, []).append(loss)

    # -- private data --------------------------------------------------------------------------------------------

    @property
    def private_view(self) -> PrivateView:
        """The private images in batches, as of this round and phase."""
        return PrivateView(self.private, self.settings, self._generator, self.secret_generator)

    def private_batches(self, epochs: int) -> Iterator[Batch]:
        """The batches of so many epochs over the private data, as `fit` takes them."""
        return self.private_view.batches(range(epochs), {})

    def steps_per_epoch(self) -> int:
        """Optimiser steps that one epoch over the private data takes."""
        return self.private_view.steps_per_epoch()

    def secret_generator(self, *labels: int | str) -> torch.Generator:
        """Draws that differential privacy needs nobody else to know. (In a simulation everyone could.)"""
        return self._generator("secret", self.secret, *labels)

    def _generator(self, *labels: int | str) -> torch.Generator:
        return generator(self.seed, "client", self.index, self.round, self.phase, *labels)

    # -- other models: teachers, global and previous ones --------------------------------------------------------

    def snapshot(self) -> State:
        """A copy of the model's weights and buffers."""
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def stored_weights(self, name: str) -> State:
        """Weights that a phase before this one put into ``memory``."""
        state = self.memory[name]
        assert isinstance(state, dict), f"{name} is a single tensor"
        return state

    def stored_tensor(self, name: str) -> Tensor:
        """A single tensor that a phase before this one put into ``memory``."""
        tensor = self.memory[name]
        assert isinstance(tensor, Tensor), f"{name} is a set of weights"
        return tensor

    def frozen_copy(self, weights: Mapping[str, Tensor]) -> VisionModel:
        """A second model with the given weights, without gradients, in eval mode. The weights are shared."""
        frozen_copy = deepcopy_structure(self.model)
        frozen_copy.load_state_dict(dict(weights), assign=True)
        return frozen_copy.requires_grad_(False).eval()

    def _source(self, target: Teacher | Tensor) -> Source:
        if isinstance(target, Tensor):
            return target
        frozen_copy = self.frozen_copy(target.weights)
        if target.batchnorm == "train":
            freeze_batchnorm_stats(frozen_copy.train())  # they belong to the shared weights
        output = TeacherOutput(frozen_copy, target.output, self._autocast)
        if target.batchnorm == "train" or self.settings.private_augment != "none":
            return self.trainer.accelerated(output)
        return torch.cat([output(images) for images, _ in self.private_chunks()])

    def private_chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The private images as they are, in order, with their labels."""
        return self.private_view.chunks(size or batch_for(self.device))

    def predict_private(self, output: Output = "logits") -> Tensor:
        """What the current model says about each private image, in eval mode, without augmentation."""
        self.model.eval()
        predict = TeacherOutput(self.model, output, self._autocast)
        return torch.cat([predict(images) for images, _ in self.private_chunks()])

    def class_counts(self) -> Tensor:
        """How many private images each class has: C, int64."""
        classes = torch.arange(self.model.num_classes, device=self.device)
        return (self.private.labels.unsqueeze(1) == classes).sum(dim=0)

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that must survive between two phases, as flat named tensors."""
        return flatten(self)

    def load(self, flat: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave. The public optimiser goes on where it stopped if ``round`` is still the same."""
        restore(self, flat)

    @property
    def nbytes(self) -> int:
        """Bytes of all that `state` gives."""
        slots = [t for o in self.optimizers.values() for kept in o.state.values() for t in kept.values()]
        return self._module_bytes + sum(t.nbytes for t in (*self.memory.tensors(), *slots))

    @cached_property
    def _module_bytes(self) -> int:
        modules = (self.model, self.modules)
        return sum(t.nbytes for m in modules for kind in (m.parameters(), m.buffers()) for t in kind)

    def begin(self, round_index: int) -> None:
        """Enter a round: the position from which all draws are derived; optimisers do not outlive a round."""
        if round_index != self.round:
            self.optimizers.clear()
        self.round = round_index

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
