"""The budget of each client in a run: parameters, and the optimiser steps and samples of each phase.

Steps are counted where batches enter the trainer, so the count is the same for eager and for captured steps. It costs
an addition per step. Forward passes without a step (payloads, teachers, evaluation) are not counted.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from fedchoir.core.client import Client
from fedchoir.core.result import ClientBudget, read_events
from fedchoir.core.training import Batch, Loss, Trainer, WrappedTrainer
from fedchoir.engines.local.client_factory import new_modules
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.multiprocess.engine import MultiprocessEngine
from fedchoir.methods.base import Method
from fedchoir.utils.io import atomic_write

FILE = "steps.jsonl"
Counts = dict[str, dict[str, list[int]]]
"""Client → phase → [optimiser steps, samples in them]."""


class CountingTrainer(WrappedTrainer):
    """A `Trainer` that counts the steps of another one by client and phase, ``public`` or ``local``."""

    def __init__(self, inner: Trainer) -> None:
        super().__init__(inner)
        self.counts: Counts = {}
        self._phases: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        made = super().optimizer(client, name, algorithm, lr=lr, weight_decay=weight_decay, momentum=momentum)
        self._phases[made] = name
        return made

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        phase = self._phases.get(optimizer)
        if phase is None:  # the linear probe of an evaluation has its own optimiser
            return self.inner.train(client, optimizer, loss, batches)
        count = self.counts.setdefault(client.name, {}).setdefault(phase, [0, 0])
        return self.inner.train(client, optimizer, loss, _counted(batches, count))


def _counted(batches: Iterable[Batch], count: list[int]) -> Iterator[Batch]:
    for batch in batches:
        count[0] += 1
        count[1] += len(batch)
        yield batch


class BudgetLog:
    """Keeps the counts of every round in ``steps.jsonl``, so that a resumed run has those of the rounds before it."""

    def __init__(
        self, method: Method, engine: LocalEngine | MultiprocessEngine, trainer: CountingTrainer | None, folder: Path
    ) -> None:
        """``trainer``: None where steps cannot be counted."""
        self._names = [info.name for info in method.spec.clients]
        self._sizes = client_sizes(method, engine)
        self._trainer = trainer
        self._path = folder / FILE

    @property
    def parameters(self) -> int:
        """Of all clients, with their auxiliary modules."""
        return sum(map(sum, self._sizes))

    def begin(self, next_round: int) -> None:
        """Keep the rounds that a resumed run does not repeat."""
        if self._trainer is not None:
            kept = [line for line in read_events(self._path) if line["round"] < next_round]
            atomic_write(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, round_index: int) -> None:
        """Add a round. Called before the checkpoint of the round."""
        if self._trainer is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"round": round_index, "clients": self._trainer.counts}) + "\n")
            self._trainer.counts = {}

    def total(self, rounds: int) -> dict[str, ClientBudget]:
        """The budget of every client by name; without steps where a round was not counted."""
        lines = read_events(self._path)
        counted = self._trainer is not None and [line["round"] for line in lines] == list(range(rounds))
        made = {}
        for name, (parameters, modules) in zip(self._names, self._sizes, strict=True):
            found = [line["clients"].get(name, {}) for line in lines]
            phases = dict.fromkeys(phase for each in found for phase in each)
            steps, samples = (
                {phase: sum(each[phase][i] for each in found if phase in each) for phase in phases} if counted else None
                for i in range(2)
            )
            made[name] = ClientBudget(parameters=parameters, modules=modules, steps=steps, samples=samples)
        return made


def client_sizes(method: Method, engine: LocalEngine | MultiprocessEngine) -> list[tuple[int, int]]:
    """Each client's number of parameters: of its model, and of the auxiliary modules that its method adds."""
    by_model: dict[str, tuple[int, int]] = {}
    names = [info.model for info in method.spec.clients]
    for k, name in enumerate(names):
        if name in by_model:
            continue
        if isinstance(engine, LocalEngine):
            client = engine.clients[k]
            by_model[name] = _parameters(client.model), _parameters(client.modules)
        else:
            made = new_modules(method, k)
            by_model[name] = _parameters(made.model), _parameters(nn.ModuleDict(made.auxiliary))
    return [by_model[name] for name in names]


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
