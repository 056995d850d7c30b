"""``fedchoir.run``: from an `Experiment` to a `Result` and the folder of the run."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout

from fedchoir import methods
from fedchoir.core.checkpoint import latest
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.interfaces import Engine
from fedchoir.core.result import Event, Result, read_events, summarise
from fedchoir.core.server import Server
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.factory import started_engine
from fedchoir.engines.local import engine as local
from fedchoir.experiments.budget import BudgetLog, CountingTrainer
from fedchoir.experiments.checkpoints import Checkpoints
from fedchoir.experiments.config import Experiment, Plan, make_plan, read_experiment
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.trained import write_models
from fedchoir.utils.devices import describe, full_gpu, pick_devices
from fedchoir.utils.errors import StorageError, UsageError
from fedchoir.utils.io import atomic_write, atomic_write_json
from fedchoir.utils.sizes import parse_size

MAY_CHANGE = {"out", "data_root", "cache", "device", "devices", "state_budget", "pretrained", "checkpoint_every"}
"""Fields of an experiment that a resumed run may change."""


class Observer(Protocol):
    """Follows a run: a progress bar, TensorBoard, ``live.json``. A subclass defines what it needs."""

    def loading(self, done: int, total: int, name: str) -> None:
        return

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        return

    def client(self, name: str, phase: str) -> None:
        return

    def round(self, event: Event) -> None:
        return

    def ended(self) -> None:
        return


@dataclass(frozen=True)
class DescribeModels(Observer):
    """Writes ``models.json`` when a run begins, so that its models can be loaded without its data."""

    method: methods.Method
    scenario: Scenario

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        samples = {k: client.train for k, client in enumerate(self.scenario.clients)}
        write_models(plan.out, self.method, plan.experiment.scenario, samples)


def run(experiment: Experiment, *, resume: bool = False, observers: Iterable[Observer] = ()) -> Result:
    """Run an experiment to its end.

    The folder ``out`` gets ``experiment.toml``, ``events.jsonl`` (a line a round), ``checkpoint/`` and, at the end,
    ``result.json``. With ``resume`` a run that was stopped continues from its last complete checkpoint to the same
    numbers.
    """
    plan = make_plan(experiment)
    observers = list(observers)
    devices = pick_devices(experiment.devices, experiment.device)
    check_folder(plan, resume)
    method, scenario, public = _loaded(plan, observers)
    try:
        return _run_here(plan, method, scenario, public, devices, resume, observers)
    except Exception as error:
        if (full := full_gpu(error, devices[0])) is None:
            raise
        raise full from None


def _run_here(
    plan: Plan,
    method: methods.Method,
    scenario: Scenario,
    public: PublicSet | None,
    devices: Sequence[torch.device],
    resume: bool,
    observers: Sequence[Observer],
) -> Result:
    """Start an engine on this machine and run the method on it."""
    experiment = plan.experiment
    counting = None
    if len(devices) == 1 and not plan.params.dp_noise:  # else training happens where it cannot be counted from here
        counting = CountingTrainer(local.fast_trainer(devices[0], experiment.pretrained))

    def progress(client: str, phase: str) -> None:
        for observer in observers:
            observer.client(client, phase)

    with (
        torch.random.fork_rng(devices=devices if len(devices) == 1 and devices[0].type == "cuda" else []),
        matmul_precision(experiment.precision),
        started_engine(
            method, scenario, public, devices=devices, precision=experiment.precision, fused=experiment.fused,
            progress=progress, budget=parse_size(experiment.state_budget), folder=plan.out / "state_cache",
            pretrained=str(experiment.pretrained) if experiment.pretrained else None,
            **({"trainer": counting} if counting else {}),
        ) as engine,
    ):  # fmt: skip
        notes = [*scenario.notes, *(public.notes if public else ()), *method.notes]
        budget = BudgetLog(method, engine, counting, plan.out)
        return run_on_engine(
            plan, method, engine, tuple(scenario.tests), notes=notes, device=describe(devices), resume=resume,
            observers=[DescribeModels(method, scenario), *observers], budget=budget,
        )  # fmt: skip


def _loaded(plan: Plan, observers: Sequence[Observer]) -> tuple[methods.Method, Scenario, PublicSet | None]:
    """As `prepare`; observers see how many samples are read."""

    def loading(done: int, total: int, name: str) -> None:
        for observer in observers:
            observer.loading(done, total, name)

    try:
        return prepare(plan, loading)
    except BaseException:
        for observer in observers:
            observer.ended()
        raise


def run_on_engine(
    plan: Plan,
    method: methods.Method,
    engine: Engine,
    tests: tuple[str, ...],
    *,
    notes: list[str],
    device: str,
    resume: bool,
    observers: Sequence[Observer],
    budget: BudgetLog | None = None,
    every_round: bool = False,
) -> Result:
    """Run a method on an engine, wherever its clients are, and write the folder of the run. ``every_round``: wait for a
    checkpoint after every round, whatever ``checkpoint_every`` is."""
    experiment, out = plan.experiment, plan.out
    server = Server(
        method, engine, tests, quorum=experiment.quorum, folder=out / "checkpoint", secure=experiment.secure
    )
    facts: dict[str, Any] = {
        "method": experiment.method, "profile": experiment.profile, "scenario": experiment.scenario,
        "public": plan.public, "seed": experiment.seed, "settings": plan.params.model_dump(mode="json"),
        "precision": experiment.precision, "fused": experiment.fused,
        **({"compress": experiment.compress} if experiment.compress else {}),
    }  # fmt: skip
    with locked(out):
        if not (out / "experiment.toml").exists():
            atomic_write(out / "experiment.toml", experiment.to_toml())
        spec = method.spec
        more = {
            "rounds": spec.rounds,
            "tests": tests,
            "clients": [*map(asdict, spec.clients)],
            "classes": spec.classes,
            "metric": spec.metric,
        }
        atomic_write_json(out / "task.json", {**facts, **more})  # for readers of an unfinished run
        events = _run_rounds(server, plan, resume, observers, budget, every_round)
        facts |= {"notes": [*notes, *method.closing_notes(), *engine.notes, *server.notes], "device": device}
        facts |= {"budget": budget.total(server.next_round)} if budget else {}
        result = summarise(method.spec, tests, events, facts)  # sites may have joined since the start
        atomic_write_json(out / "result.json", result.model_dump(mode="json"))
        return result


def _run_rounds(
    server: Server,
    plan: Plan,
    resume: bool,
    observers: Sequence[Observer],
    budget: BudgetLog | None,
    every_round: bool,
) -> list[Event]:
    """All rounds, or those after the last checkpoint. An event is on disk before the checkpoint that counts it."""
    experiment = plan.experiment
    path = plan.out / "events.jsonl"
    events: list[Event] = []
    if resume and server.resume():
        events = [event for event in read_events(path) if event["round"] < server.settled]
    atomic_write(path, "".join(json.dumps(event) + "\n" for event in events))
    if budget:
        budget.begin(server.next_round)
    checkpoints = Checkpoints(
        server,
        1 if every_round else experiment.checkpoint_every,
        memory=parse_size(experiment.state_budget),
        size=4 * budget.parameters if budget else 0,
        records=[path],
        background=not every_round,
    )
    try:
        for observer in observers:
            observer.began(plan, server.method.spec, events)
        with path.open("a") as file, checkpoints:
            for settled in checkpoints.rounds():
                events += settled
                file.write("".join(json.dumps(event) + "\n" for event in settled))
                file.flush()
                if budget:
                    budget.write(server.next_round - 1)
                checkpoints.recorded()
                for observer in observers:
                    for event in settled:
                        observer.round(event)
    finally:
        for observer in observers:
            observer.ended()
    return events


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. A folder that cannot be written stops the run with one line."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / "run.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise UsageError(f"another process is running in {out}; wait for it to end, or choose another folder") from None
    except OSError as error:
        raise UsageError(f"out: {out} cannot be written: {error.strerror}; choose another folder") from None
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise StorageError(f"the run could not be written to {out}: {error}") from error
    finally:
        lock.release()


def check_folder(plan: Plan, resume: bool) -> None:
    """Refuse to overwrite another run, or to resume one with other settings."""
    toml = plan.out / "experiment.toml"
    if not resume:
        if (plan.out / "events.jsonl").exists():
            raise UsageError(f"{plan.out} holds a run already: --resume continues it, another --out starts a new one")
    elif toml.exists():
        if changed := differences(read_experiment(toml), plan.experiment, MAY_CHANGE):
            raise UsageError(f"cannot resume {plan.out}: {changed}; a run is resumed with the settings it began with")
    elif latest(plan.out / "checkpoint") is not None:
        raise UsageError(f"{toml} is missing, so the run in {plan.out} cannot be resumed")


def differences(before: Experiment, now: Experiment, ignored: set[str]) -> str:
    """What differs between two experiments, in words. A tuple equals a list, which it becomes in a file."""
    values, new_values = before.model_dump(mode="json"), now.model_dump(mode="json")
    pairs = [(n, values[n], new_values[n]) for n in Experiment.model_fields if n not in ignored]
    return ", ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in pairs if old != new)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """TF32 matrix products inside the block, or full float32 where the precision is fp32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
