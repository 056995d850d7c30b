"""A client: its model, its private data, its stored state, and the operations that methods build on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedchoir.compression.chain import Compression
from fedchoir.core.actions import PublicBatch
from fedchoir.core.batches import Companions, PrivateBatches, PublicView, Source
from fedchoir.core.client_model import ClientModel
from fedchoir.core.client_state import Memory, State, flatten, restore
from fedchoir.core.evaluation import batch_for
from fedchoir.core.settings import Settings
from fedchoir.core.teachers import (
    Output,
    Teacher,
    TeacherOutput,
    copy_structure,
    freeze_batchnorm_stats,
    frozen_batchnorm_stats,
)
from fedchoir.core.training import Batch, EagerTrainer, Loss, Trainer
from fedchoir.data.samples import Augmentation, Recolor, Samples
from fedchoir.models import Model
from fedchoir.utils.rng import generator

if TYPE_CHECKING:
    from fedchoir.privacy.noise import SecureRandom  # needs the extra privacy


class Client(ClientModel):
    """A participant of a federation. Its whole state is in ``model``, ``modules``, ``memory`` and ``optimizers``."""

    def __init__(
        self,
        index: int,
        name: str,
        model: Model,
        private: Samples,
        *,
        settings: Settings,
        seed: int,
        rounds: int,
        public: PublicView | Callable[[Client], PublicView] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        device: torch.device | None = None,
        precision: str = "fp32",
        trainer: Trainer | None = None,
    ) -> None:
        """``public``: the public samples, or what finds them in the memory of a client that receives them."""
        super().__init__(model, modules or {}, device or torch.device("cpu"), precision)
        self.index = index
        self.name = name
        self.private = private.to(self.device)
        self.public = public
        self.settings = settings
        self.seed = seed
        self.rounds = rounds
        self._round = 0
        self.round_was_read = False
        self.phase = ""
        self.hostile = False  # a simulated attacker
        self.compression = Compression()  # of what it sends and receives
        self.secure_random: SecureRandom | None = None  # at a real site: draws for DP come from the operating system
        self.noisy_releases = 0  # payloads with noise that this object has made
        self.memory = Memory()
        self.optimizers: dict[str, Optimizer] = {}
        self._losses: dict[str, list[Tensor]] = {}
        self._values: dict[str, Tensor] = {}
        self.trainer: Trainer = trainer or EagerTrainer()

    @property
    def round(self) -> int:
        """The index of the round. Reading it is recorded: a captured training step is then valid for one round."""
        self.round_was_read = True
        return self._round

    @round.setter
    def round(self, index: int) -> None:
        self._round = index

    # -- public samples and predictions ----------------------------------------------------------------------------

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits for evaluation, by the trainer's fastest path."""
        return self.trainer.forward(self, inputs)[1]

    def public_samples(
        self, batch: PublicBatch, recolor: Recolor | None = None, augment: Augmentation | None = None
    ) -> Tensor:
        """The samples of a public batch, identical at every client that transforms and recolors them alike.
        ``augment``: None for the option ``public_augment``."""
        if self.public is None:
            raise RuntimeError(f"client {self.name} has no public set")
        if not isinstance(self.public, PublicView):
            self.public = self.public(self)
        return self.public.samples(batch, recolor, self.private.transform, augment)

    def public_outputs(self, batch: PublicBatch, recolor: Recolor | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits on a public batch."""
        with self.batch_stats_frozen():
            return self.trainer.forward(self, self.public_samples(batch, recolor))

    @contextmanager
    def batch_stats_frozen(self) -> Iterator[None]:
        """The model in train mode without gradients: BatchNorm normalises by the batch, but its running statistics
        stay. They are updated once per batch, in the optimiser step."""
        self.model.train()
        with torch.no_grad(), frozen_batchnorm_stats(self.model):
            yield

    def public_step(self, batch: PublicBatch, loss: Loss, recolor: Recolor | None = None, /, **targets: Tensor) -> None:
        """One optimiser step on a public batch; ``targets`` come with the batch by their names."""
        if self.settings.public_optimizer_lifetime == "batch":
            self.optimizers.pop("public", None)
        if "public" not in self.optimizers:
            self.optimizers["public"] = self.new_public_optimizer()
        self._train_mode()
        labels = torch.empty(0, dtype=torch.int64, device=self.device)
        step = Batch(self.public_samples(batch, recolor), labels, targets)
        self.log_loss("public", self.trainer.train(self, self.optimizers["public"], loss, [step]))

    def new_public_optimizer(self) -> Optimizer:
        """The optimiser of the public phase in its initial state."""
        s = self.settings
        lr = s.lr(s.public_lr, self.round, self.rounds)
        return self._optimizer("public", s.public_optimizer, lr, s.public_weight_decay)

    # -- training on private samples -------------------------------------------------------------------------------

    def train(
        self,
        loss: Loss,
        *,
        epochs: int | None = None,
        first: int = 0,
        phase: str = "local",
        views: int = 1,
        recolor: Recolor | None = None,
        companions: Companions | None = None,
        after_step: Callable[[Client], None] | None = None,
        optimizer: Optimizer | None = None,
        **targets: Teacher | Tensor,
    ) -> Optimizer | None:
        """Epochs over the private data with a fresh optimiser, which is returned; None if there were no epochs.

        Args:
            loss: of a batch.
            epochs: None for the option ``local_epochs``.
            first: number of the first epoch, for a phase that calls `train` several times.
            phase: the name under which the loss is reported.
            views: with 2, a second augmentation of the samples comes as ``batch["view2"]``, and so on.
            recolor: changes the images after the targets were computed.
            companions: samples of others that come with every batch, behind the private ones.
            after_step: called after every optimiser step; it must not synchronise with the device.
            optimizer: that of an earlier call in this phase, to go on with.
            targets: come with every batch by their names: tensors with one row per private sample, or a `Teacher`
                whose outputs on the batch are wanted.
        """
        epochs = self.settings.epochs_of(self.index) if epochs is None else epochs
        if epochs == 0:
            return optimizer
        s = self.settings.of_pretraining() if phase == "pretrain" else self.settings
        if optimizer is None:
            lr = s.lr(s.local_lr, self.round, self.rounds)
            optimizer = self._optimizer("local", s.optimizer, lr, s.local_weight_decay, s.momentum)
        if after_step is not None:
            optimizer.register_step_post_hook(lambda *_: after_step(self))
        sources = {name: self._source(target) for name, target in targets.items()}
        self._train_mode()
        samples = replace(self.private_batches, settings=s)
        batches = samples.batches(range(first, first + epochs), sources, views, recolor, companions)
        self.log_loss(phase, self.trainer.train(self, optimizer, loss, batches))
        return optimizer

    def _optimizer(self, name: str, algorithm: str, lr: float, weight_decay: float, momentum: float = 0.0) -> Optimizer:
        return self.trainer.optimizer(self, name, algorithm, lr=lr, weight_decay=weight_decay, momentum=momentum)

    # -- reports ---------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, float]:
        """The mean loss of each phase since the last report. This synchronises with the device."""
        means = {f"{phase}_loss": float(torch.stack(values).mean()) for phase, values in self._losses.items()}
        means |= {name: float(value) for name, value in self._values.items()}
        self._losses.clear()
        self._values.clear()
        return means

    def log_value(self, name: str, value: Tensor) -> None:
        """Add a number, still on the device, to the next report."""
        self._values[name] = value

    def log_loss(self, phase: str, loss: Tensor) -> None:
        """Add a phase's loss, still on the device, to the next report."""
        self._losses.setdefault(phase, []).append(loss)

    @property
    def trainings(self) -> int:
        """How many losses wait for the next report: a count that differs between two calls of `train` in a phase."""
        return sum(map(len, self._losses.values()))

    # -- private data ----------------------------------------------------------------------------------------------

    @property
    def private_batches(self) -> PrivateBatches:
        """The private samples in batches, as of this round and phase."""
        return PrivateBatches(self.private, self.settings, self.generator, self._poisson_sample)

    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch over the private data."""
        return self.private_batches.steps_per_epoch()

    def private_chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The private samples without augmentation, in order, with their labels."""
        return self.private_batches.chunks(size or batch_for(self.device))

    def predict_private(self, output: Output = "logits") -> Tensor:
        """The current model's output on every private sample, in eval mode, without augmentation."""
        return self.predict_samples(self.private, output)

    def predict_samples(self, samples: Samples, output: Output = "logits") -> Tensor:
        """The current model's output on every sample of a set, in eval mode, without augmentation."""
        self.model.eval()
        model = TeacherOutput(self.model, output, self._autocast)
        chunks = replace(self.private_batches, data=samples).chunks(batch_for(self.device))
        return torch.cat([model(inputs) for inputs, _ in chunks])

    def _outputs(self, model: TeacherOutput) -> Tensor:
        return torch.cat([model(inputs) for inputs, _ in self.private_chunks()])

    def class_counts(self) -> Tensor:
        """How many private samples each class has: C, int64."""
        classes = torch.arange(self.model.num_classes, device=self.device)
        return (self.private.labels.unsqueeze(1) == classes).sum(dim=0)

    def _poisson_sample(self, rate: float, epoch: int, number: int) -> Tensor:
        """Indices of a batch under differential privacy: each sample is in it with probability ``rate``."""
        if self.secure_random is not None:
            return self.secure_random.poisson_sample(len(self.private), rate)
        chances = torch.rand(len(self.private), generator=self.secret_generator("sample", epoch, number))
        return (chances < rate).nonzero().flatten()

    def generator(self, *labels: int | str) -> torch.Generator:
        """The generator for a purpose in this round and phase."""
        return generator(self.seed, "client", self.index, self.round, self.phase, *labels)

    def secret_generator(self, *labels: int | str) -> torch.Generator:
        """A generator that simulates the secret draws of differential privacy. Real sites have `secure_random`."""
        return self.generator("secret", "", *labels)

    # -- teachers: global, previous and pretrained models ----------------------------------------------------------

    def snapshot(self) -> State:
        """A copy of the model's weights and buffers."""
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def stored_weights(self, name: str) -> State:
        """A state dict that an earlier phase put into ``memory``."""
        state = self.memory[name]
        assert isinstance(state, dict), f"{name} is a single tensor"
        return state

    def stored_tensor(self, name: str) -> Tensor:
        """A tensor that an earlier phase put into ``memory``."""
        tensor = self.memory[name]
        assert isinstance(tensor, Tensor), f"{name} is a state dict"
        return tensor

    def frozen_copy(self, weights: Mapping[str, Tensor]) -> Model:
        """A second model with the given weights, without gradients, in eval mode. It shares the weights' memory."""
        copy = copy_structure(self.model)
        copy.load_state_dict(dict(weights), assign=True)
        return copy.requires_grad_(False).eval()

    def _source(self, target: Teacher | Tensor) -> Source:
        if isinstance(target, Tensor):
            return target
        model = self.frozen_copy(target.weights)
        if target.batchnorm == "train":
            freeze_batchnorm_stats(model.train())  # the statistics belong to the shared weights
        teacher = TeacherOutput(model, target.output, self._autocast)
        if target.batchnorm == "train" or self.settings.private_augment != "none":
            return self.trainer.accelerated(teacher)
        return self._outputs(teacher)

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that must survive between two phases, as flat named tensors."""
        return flatten(self)

    def load(self, flat: Mapping[str, Tensor]) -> None:
        """Restore what `state` gave. The public optimiser continues if ``round`` is still the same."""
        restore(self, flat)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that `state` gives."""
        slots = [t for o in self.optimizers.values() for tensors in o.state.values() for t in tensors.values()]
        return self._module_bytes + sum(t.nbytes for t in (*self.memory.tensors(), *slots))

    @cached_property
    def _module_bytes(self) -> int:
        modules = (self.model, self.modules)
        return sum(t.nbytes for m in modules for kind in (m.parameters(), m.buffers()) for t in kind)

    def begin(self, round_index: int) -> None:
        """Enter a round. Optimisers do not outlive a round."""
        if round_index != self.round:
            self.optimizers.clear()
        self.round = round_index
