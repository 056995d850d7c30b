"""``fedchoir.run``: from an `Experiment` to a `Result` and a folder that tells how it came about."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from fedchoir import methods
from fedchoir.core.checkpoint import latest, write_json
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.result import Event, Result, read_events, summarise
from fedchoir.core.server import Engine, Server
from fedchoir.data.options import DataOptions
from fedchoir.data.public import PublicSet, load_public
from fedchoir.data.scenario import Scenario, load_scenario
from fedchoir.engines.factory import started_engine
from fedchoir.experiments import config as experiments
from fedchoir.experiments.config import Experiment, Plan
from fedchoir.utils.devices import describe, full_memory, pick_devices
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.sizes import parse_size


class Observer(Protocol):
    """Someone who watches a run: a progress bar, TensorBoard."""

    def began(self, plan: Plan, task: FederationSpec, done: list[Event]) -> None: ...

    def client(self, name: str, phase: str) -> None: ...

    def round(self, event: Event) -> None: ...

    def ended(self) -> None: ...


def run(experiment: Experiment, *, resume: bool = False, observers: Iterable[Observer] = ()) -> Result:
    """Run an experiment to its end, or the rest of it.

    The folder ``out`` gets ``experiment.toml``, ``events.jsonl`` (a line a round), ``checkpoint/`` and, at the end,
    ``result.json``. With ``resume`` a run that was stopped goes on from its last checkpoint to the same numbers.
    """
    plan = experiments.plan(experiment)
    watchers = list(observers)
    devices = pick_devices(experiment.devices, experiment.device)
    prepare_folder(plan, resume)
    scenario = load(plan)
    public = load_public_set(plan)
    task = make_task(plan, scenario, public)
    method = methods.get(experiment.method)(plan.params, task)
    with (
        torch.random.fork_rng(devices=devices if len(devices) == 1 and devices[0].type == "cuda" else []),
        matmul_precision(plan),
        started_engine(
            method, scenario, public, devices=devices, precision=experiment.precision,
            fused=experiment.fused, progress=lambda client, phase: tell(watchers, client, phase),
            budget=parse_size(experiment.state_budget), folder=plan.out / "resting",
        ) as engine,
    ):  # fmt: skip
        notes = [*scenario.notes, *(public.notes if public else ())]
        try:
            return conduct(
                plan, method, engine, tuple(scenario.tests), notes=notes, device=describe(devices), resume=resume,
                watchers=watchers,
            )  # fmt: skip
        except torch.OutOfMemoryError:
            raise WorkerError(full_memory(devices[0])) from None


def conduct(
    plan: Plan,
    method: methods.Method,
    engine: Engine,
    tests: tuple[str, ...],
    *,
    notes: list[str],
    device: str,
    resume: bool,
    watchers: list[Observer],
) -> Result:
    """Play a method on an engine, wherever its clients are, and write the folder of the run."""
    experiment = plan.experiment
    federation = Server(
        method, engine, tests, quorum=experiment.quorum, folder=plan.out / "checkpoint", secure=experiment.secure
    )
    write_plan(plan)
    write_json(plan.out / "task.json", {**plan_facts(plan), **task_facts(method.task, tests)})
    events = begin(federation, plan, resume)
    for watcher in watchers:
        watcher.began(plan, method.task, events)
    try:
        play(federation, plan.out / "events.jsonl", events, watchers)
    finally:
        for watcher in watchers:
            watcher.ended()
    facts = {**plan_facts(plan), "notes": notes, "device": device}
    result = summarise(method.task, tests, events, facts)
    write_json(plan.out / "result.json", result.model_dump(mode="json"))
    return result


def tell(watchers: list[Observer], client: str, phase: str) -> None:
    for watcher in watchers:
        watcher.client(client, phase)


def play(federation: Server, path: Path, events: list[Event], watchers: list[Observer]) -> None:
    """Rounds to the end. The event is on disk before the checkpoint that counts it as done."""
    with path.open("a") as file:
        for settled in federation.rounds():
            events += settled
            file.write("".join(json.dumps(event) + "\n" for event in settled))
            file.flush()
            os.fsync(file.fileno())
            federation.save()
            for watcher in watchers:
                for event in settled:
                    watcher.round(event)


def begin(federation: Server, plan: Plan, resume: bool) -> list[Event]:
    """The events so far: none, or on resume those up to the checkpoint (a later one is played again)."""
    path = plan.out / "events.jsonl"
    events: list[Event] = []
    if resume and federation.resume():
        events = [event for event in read_events(path) if event["round"] < federation.settled]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return events


def prepare_folder(plan: Plan, resume: bool) -> None:
    """Refuse to overwrite another run; on resume, refuse to go on with other settings."""
    toml = plan.out / "experiment.toml"
    if not resume:
        if (plan.out / "events.jsonl").exists():
            raise UsageError(f"{plan.out} holds a run already: --resume continues it, another --out starts a new one")
        return
    if not toml.exists():
        if latest(plan.out / "checkpoint") is not None:
            raise UsageError(f"{toml} is missing, so the run in {plan.out} cannot be resumed")
        return
    before = experiments.make(experiments.read(toml))
    ignored = {"out", "data_root", "device", "devices", "state_budget"}
    if changed := differences(before, plan.experiment, ignored):
        raise UsageError(f"cannot resume {plan.out}: {changed}; --resume goes on with the settings the run began with")


def differences(before: Experiment, now: Experiment, ignored: set[str]) -> str:
    """What differs between two experiments, in words."""
    pairs = [(n, getattr(before, n), getattr(now, n)) for n in Experiment.model_fields if n not in ignored]
    return ", ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in pairs if old != new)


def write_plan(plan: Plan) -> None:
    plan.out.mkdir(parents=True, exist_ok=True)
    toml = plan.out / "experiment.toml"
    if not toml.exists():
        part = toml.with_name(toml.name + ".part")  # a process killed here leaves no half of a file
        part.write_text(experiments.to_toml(plan.experiment))
        part.replace(toml)


def plan_facts(plan: Plan) -> dict[str, Any]:
    """What was asked for, with everything filled in."""
    told = plan.experiment
    return {
        "method": told.method,
        "profile": told.profile,
        "scenario": told.scenario,
        "public": plan.public,
        "seed": told.seed,
        "settings": plan.params.model_dump(mode="json"),
        "precision": told.precision,
        "fused": told.fused,
    }


def task_facts(task: FederationSpec, tests: tuple[str, ...]) -> dict[str, Any]:
    """What a reader needs to follow a run that is not finished: who takes part, the test sets, the length."""
    return {
        "rounds": task.rounds,
        "tests": list(tests),
        "clients": [asdict(card) for card in task.clients],
        "classes": list(task.classes),
    }


def load(plan: Plan) -> Scenario:
    """The scenario with the data options among the settings."""
    values = {name: getattr(plan.params, name) for name in (field.name for field in fields(DataOptions))}
    return load_scenario(
        plan.experiment.scenario,
        root=plan.experiment.data_root,
        seed=plan.experiment.seed,
        options=DataOptions(**values),
    )


def load_public_set(plan: Plan) -> PublicSet | None:
    if plan.public is None:
        return None
    params = plan.params
    return load_public(
        plan.public,
        root=plan.experiment.data_root,
        seed=plan.experiment.seed,
        size=params.public_size,
        image_size=params.image_size,
        normalisation=params.normalisation,
        strict="public_size" in plan.experiment.settings,
    )


def make_task(plan: Plan, scenario: Scenario, public: PublicSet | None) -> FederationSpec:
    """What server and clients know of each other."""
    tests = scenario.tests
    cards = tuple(
        ClientInfo(
            name=data.name,
            model=plan.models[k % len(plan.models)],
            train=len(data.train),
            test=len(tests[data.domain]),
            domain=data.domain,
        )
        for k, data in enumerate(scenario.clients)
    )
    for card in cards:
        if card.train < 2:
            raise UsageError(f"client {card.name} has {card.train} training images; it needs at least 2")
    return FederationSpec(
        classes=scenario.classes,
        clients=cards,
        rounds=plan.rounds,
        seed=plan.experiment.seed,
        public_size=len(public.images) if public else 0,
        image_size=plan.params.image_size,
        top_k=scenario.top_k,
    )


class matmul_precision:
    """TF32 or full float32 inside the block."""

    def __init__(self, plan: Plan) -> None:
        self._wanted = plan.experiment.precision != "fp32"

    def __enter__(self) -> None:
        self._before: tuple[Any, Any] = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        torch.backends.cuda.matmul.allow_tf32 = self._wanted
        torch.backends.cudnn.allow_tf32 = self._wanted

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before
