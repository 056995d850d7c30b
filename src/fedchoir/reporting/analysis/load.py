"""Loads a finished run with its clients as they were after the last round."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.core.client import Client
from fedchoir.core.client_state import State
from fedchoir.core.result import Event, read_events
from fedchoir.core.server import Server
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import Experiment, Plan, make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.methods.base import Method
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.rng import generator

BATCH = 500


@dataclass(frozen=True)
class FinishedRun:
    """The clients, data and events of a run. ``public`` is None if the method uses no public set."""

    folder: Path
    plan: Plan
    method: Method
    scenario: Scenario
    public: PublicSet | None
    clients: list[Client] = field(repr=False)
    events: list[Event] = field(repr=False)
    own: dict[int, State] | None = field(default=None, repr=False)
    """The clients' own weights before the last averaging, where the evaluated models are global ones. Empty where the
    checkpoint has none: the clients of FedAvg begin each round with the global model and store none."""

    @property
    def seed(self) -> int:
        return self.plan.experiment.seed

    @property
    def labelled(self) -> bool:
        """Whether the clients' own classifiers were trained; self-supervised methods are scored by a probe."""
        return self.method.uses_labels

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.clients]

    @property
    def domains(self) -> list[str]:
        """The name of each client's own test set."""
        return [data.domain for data in self.scenario.clients]

    @cached_property
    def accuracy(self) -> list[list[float]] | None:
        """The accuracy matrix of the last evaluated round."""
        return next((event["accuracy"] for event in reversed(self.events) if event["accuracy"] is not None), None)

    @contextmanager
    def before_averaging(self) -> Iterator[list[Client]]:
        """The clients with the models that they trained themselves, which a global model replaces afterwards."""
        if not self.own:
            yield self.clients
            return
        shared = [client.snapshot() for client in self.clients]
        for client in self.clients:
            client.model.load_state_dict(self.own[client.index])
        try:
            yield self.clients
        finally:
            for client, weights in zip(self.clients, shared, strict=True):
                client.model.load_state_dict(weights)

    def sample(self, images: Samples, count: int, label: str) -> Samples:
        """At most ``count`` of the images, drawn from the run's seed."""
        order = torch.randperm(len(images), generator=generator(self.seed, "analysis", label))
        return images.subset(order[:count].sort().values)

    def tests(self, count: int) -> dict[str, Samples]:
        """A sample of every test set."""
        return {name: self.sample(test, count, name) for name, test in self.scenario.tests.items()}

    def public_images(self, count: int) -> Tensor | None:
        """The first public images, normalised and without augmentation: N×3×S×S."""
        if self.public is None:
            return None
        samples = self.public.samples
        return normalised(samples.subset(torch.arange(min(count, len(samples)))))


def load_run(folder: Path, *, data_root: Path | None = None, device: str = "auto") -> FinishedRun:
    """The run in a folder, rebuilt from ``experiment.toml`` and its last checkpoint."""
    toml = folder / "experiment.toml"
    if not toml.exists():
        raise UsageError(f"{folder} is not a run: there is no {toml}")
    values = {**read_toml(toml), "out": folder, "device": device}
    if data_root is not None:
        values["data_root"] = data_root
    plan = make_plan(Experiment(**values))
    method, scenario, public = prepare(plan)
    precision = plan.experiment.precision
    engine = LocalEngine(method, scenario, public, device=pick_device(device), precision=precision, budget=float("inf"))
    server = Server(method, engine, tuple(scenario.tests), folder=folder / "checkpoint")
    try:
        if not server.resume():
            raise UsageError(f"{folder} has no checkpoint, so its models cannot be loaded")
        clients = list(engine.clients)
    except (RuntimeError, OSError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"the checkpoint in {folder} does not fit its experiment.toml: {first}") from None
    if method.public_set:
        public = method.received_public(clients[0]).public
    own: dict[int, State] | None = None
    if weights := method.global_weights():  # the model that was evaluated
        stored = [] if method.begins_with_global else clients
        own = {c.index: {name: t.cpu() for name, t in c.snapshot().items()} for c in stored}
        for client in clients:
            part = method.client_weights(client.index, weights, server.next_round - 1)
            client.model.load_state_dict({**client.model.state_dict(), **part})
    events = [event for event in read_events(folder / "events.jsonl") if event["round"] < server.settled]
    return FinishedRun(folder, plan, method, scenario, public, clients, events, own)


@torch.no_grad()
def outputs(client: Client, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features N×d and logits N×C of a client's model on normalised images, in eval mode, on the CPU."""
    client.model.eval()
    batches = [client.features_and_logits(chunk.to(client.device)) for chunk in images.split(BATCH)]
    features, logits = zip(*batches, strict=True)
    return torch.cat(features).cpu(), torch.cat(logits).cpu()


def normalised(images: Samples) -> Tensor:
    """The images of a set as float tensors with its mean and standard deviation removed: N×3×S×S."""
    if images.transform is None:
        raise UsageError(f"the analysis is for images, and this run has {images.modality} samples")
    return images.transform(images.inputs[:])
