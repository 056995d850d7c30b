"""A run that was played, with its clients as they were after the last round."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.core.client import Client
from fedchoir.core.result import Event, read_events
from fedchoir.core.server import Server
from fedchoir.data.image.image_set import ImageSet, normalise
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import Experiment, Plan, make_plan
from fedchoir.experiments.run import prepare
from fedchoir.methods.base import Method
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.rng import generator

BATCH = 500


@dataclass(frozen=True)
class FinishedRun:
    """A run's clients, data and events. ``public`` is None where the method uses no public set."""

    folder: Path
    plan: Plan
    method: Method
    scenario: Scenario
    public: PublicSet | None
    clients: list[Client] = field(repr=False)
    events: list[Event] = field(repr=False)

    @property
    def seed(self) -> int:
        return self.plan.experiment.seed

    @property
    def labelled(self) -> bool:
        """Whether the clients' classifiers mean something: not where a probe is trained to score them."""
        return type(self.method).evaluate is Method.evaluate

    @property
    def homes(self) -> list[str]:
        return [data.domain for data in self.scenario.clients]

    @cached_property
    def accuracy(self) -> list[list[float]] | None:
        """The accuracy matrix of the last evaluated round."""
        return next((event["accuracy"] for event in reversed(self.events) if event["accuracy"] is not None), None)

    def sample(self, images: ImageSet, count: int, label: str) -> ImageSet:
        """At most ``count`` of the images, drawn from the run's seed."""
        order = torch.randperm(len(images), generator=generator(self.seed, "analysis", label))
        return images.subset(order[:count].sort().values)

    def tests(self, count: int) -> dict[str, ImageSet]:
        """A sample of every test set."""
        return {name: self.sample(test, count, name) for name, test in self.scenario.tests.items()}

    def public_images(self, count: int) -> Tensor | None:
        """The first public images as the models see them, without augmentation: N×3×S×S."""
        if self.public is None:
            return None
        return normalise(self.public.images[:count], self.public.mean, self.public.std)


def load_run(folder: Path, *, data_root: Path | None = None, device: str = "auto") -> FinishedRun:
    """The run in a folder, rebuilt from ``experiment.toml`` and its last checkpoint."""
    toml = folder / "experiment.toml"
    if not toml.exists():
        raise UsageError(f"{folder} holds no run: there is no {toml}")
    values = {**read_toml(toml), "out": folder, "device": device}
    if data_root is not None:
        values["data_root"] = data_root
    plan = make_plan(Experiment(**values))
    method, scenario, public = prepare(plan)
    place = pick_device(device)
    engine = LocalEngine(
        method, scenario, public, device=place, precision=plan.experiment.precision, budget=float("inf")
    )
    federation = Server(method, engine, tuple(scenario.tests), folder=folder / "checkpoint")
    try:
        if not federation.resume():
            raise UsageError(f"{folder} has no checkpoint, so its models cannot be looked at")
        clients = list(engine.clients)
    except (RuntimeError, OSError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"the checkpoint in {folder} does not fit its experiment.toml: {first}") from None
    if weights := method.global_weights():  # what was tested
        for client in clients:
            client.model.load_state_dict(weights)
    events = read_events(folder / "events.jsonl")
    return FinishedRun(folder, plan, method, scenario, public, clients, events)


@torch.no_grad()
def answers(client: Client, images: Tensor) -> tuple[Tensor, Tensor]:
    """What a client's model says about normalised images, in eval mode: features N×d and logits N×C, on the CPU."""
    client.model.eval()
    parts = [client.features_and_logits(chunk.to(client.device)) for chunk in images.split(BATCH)]
    return torch.cat([h.cpu() for h, _ in parts]), torch.cat([z.cpu() for _, z in parts])


def ready(images: ImageSet) -> Tensor:
    """A set of images as models see it: N×3×S×S, normalised."""
    return normalise(images.images, images.mean, images.std)
