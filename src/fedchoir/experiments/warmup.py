"""``fedchoir warmup``: compile the kernels that the first run of an experiment would compile.

One short round runs every action of the method on every model, with a full batch and the last, smaller one. Kernels do
not depend on the number of samples, so these are the kernels of the whole run. Several processes (``devices``) compile
at the same time.
"""

import time
from dataclasses import replace

import torch

from fedchoir import methods
from fedchoir.core.result import Event
from fedchoir.core.server import Server
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import Scenario
from fedchoir.engines.factory import check_fused, started_engine
from fedchoir.engines.local.kernel_cache import compiled_kernels, use_kernel_cache
from fedchoir.experiments.config import Experiment, Plan, make_plan
from fedchoir.experiments.prepare import make_spec, prepare
from fedchoir.experiments.run import matmul_precision
from fedchoir.utils.devices import pick_devices

TESTS = 256  # samples of each test set that are evaluated


def warm_up(experiment: Experiment) -> str:
    """Compile the kernels of an experiment with fused layers. Returns what was done, in one line."""
    plan = make_plan(experiment)  # a mistake is reported on any machine
    devices = pick_devices(experiment.devices, experiment.device)
    if all(device.type == "cpu" for device in devices):
        return "nothing to compile: on a CPU, models use torch's own kernels (fused layers, --fused, are for GPUs)"
    check_fused(devices, plan.params)
    folder, start = use_kernel_cache(devices[0]), time.perf_counter()
    before = compiled_kernels(folder)
    short_round(plan, devices, fused=True)
    count, seconds = compiled_kernels(folder) - before, time.perf_counter() - start
    done = f"compiled {count} kernels" if count else "nothing to compile: all kernels were there"
    return f"{done} ({seconds:.1f} s, {before + count} in {folder})"


def short_round(plan: Plan, devices: list[torch.device], *, fused: bool) -> list[Event]:
    """One round of a plan on a few batches of each client. Nothing is written."""
    epochs = {"local_epochs": 1, **({"pretrain_epochs": 1} if getattr(plan.params, "pretrain_epochs", 0) else {})}
    experiment = plan.experiment.model_copy(update={"settings": {**plan.experiment.settings, **epochs}, "rounds": 1})
    plan = make_plan(experiment)
    method, scenario, public = few_batches(plan, *prepare(plan))
    with (
        torch.random.fork_rng(devices=[]),
        matmul_precision(experiment.precision),
        started_engine(
            method, scenario, public, devices=devices, precision=experiment.precision, fused=fused
        ) as engine,
    ):
        rounds = Server(method, engine, tuple(scenario.tests), quorum=experiment.quorum).rounds()
        return [event for events in rounds for event in events]


def few_batches(
    plan: Plan, method: methods.Method, scenario: Scenario, public: PublicSet | None
) -> tuple[methods.Method, Scenario, PublicSet | None]:
    """The same federation with so few samples that every kind of batch occurs once."""
    params = method.params
    clients = tuple(replace(data, train=_first(data.train, params.local_batch)) for data in scenario.clients)
    tests = {name: _head(test, TESTS) for name, test in scenario.tests.items()}
    own = {name: _head(test, TESTS) for name, test in scenario.own_tests.items()}
    scenario = replace(scenario, clients=clients, tests=tests, own_tests=own)
    if public is not None:
        public = replace(public, samples=_first(public.samples, params.public_batch))
    return type(method)(params, make_spec(plan, scenario, public)), scenario, public


def _first(samples: Samples, batch: int) -> Samples:
    """A full batch, and one of the size of the last."""
    return _head(samples, batch + len(samples) % batch)


def _head(samples: Samples, count: int) -> Samples:
    return samples.subset(torch.arange(min(count, len(samples))))
