"""An FCCL+ round by fedchoir against the same round as a plain PyTorch loop.

    python benchmarks/naive.py [--scenario digits-lite] [--devices cpu,cpu] [--repeats 3]
    python benchmarks/naive.py --scenario digits --data-root DATA --epochs 1 [--device cuda --precision tf32]

The plain loop is the usual first implementation: PIL transforms image by image in a `DataLoader`, eager steps, a new
optimiser for every public batch, the teacher evaluated in every step, ``loss.item()`` after every step. Both start from
the same weights and do the same updates (same losses, optimisers, batch sizes and numbers of steps; each draws its own
batches); the numbers of steps and the losses are compared. Rounds alternate; ratios are of each phase and the round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from fedchoir import Experiment
from fedchoir.core.client import Client
from fedchoir.core.interfaces import Engine
from fedchoir.core.server import Server
from fedchoir.core.training import Batch, Loss, Trainer
from fedchoir.engines.factory import started_engine
from fedchoir.engines.local.engine import LocalEngine, fast_trainer
from fedchoir.experiments.config import Plan, make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.run import matmul_precision
from fedchoir.losses import fccm, fisl, fntd, instance_similarity
from fedchoir.utils.devices import pick_devices

Seconds = dict[str, float]
PHASES = ("public", "local", "evaluate")


# -- the plain loop ----------------------------------------------------------------------------------------------------


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one at every access."""

    def __init__(self, images: Tensor, labels: Iterable[int], transform: Callable[[Image.Image], Tensor]) -> None:
        self.images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
        self.labels = list(labels)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


class PlainLoop:
    """FCCL+ in plain PyTorch."""

    def __init__(self, models: list[nn.Module], scenario: Any, public: Any, params: Any, o: argparse.Namespace) -> None:
        self.models, self.p, self.device = models, params, torch.device(o.device)
        self.seconds: Seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self.losses: dict[str, list[float]] = {}

        def loader(images: Any, labels: Iterable[int], batch: int, shuffle: bool, *augment: Any) -> Any:
            transform = T.Compose([*augment, T.ToTensor(), T.Normalize(images.mean, images.std)])
            pictures = Pictures(images.inputs, labels, transform)
            return DataLoader(pictures, batch_size=batch, shuffle=shuffle, num_workers=o.workers)

        size = params.image_size
        weak = (T.RandomResizedCrop(size, scale=(0.2, 1.0)), T.RandomHorizontalFlip())
        self.public = loader(public.samples, [0] * len(public), params.public_batch, True, *weak)
        self.private = [loader(c.train, c.train.labels.tolist(), params.local_batch, True) for c in scenario.clients]
        self.tests = [loader(t, t.labels.tolist(), 250, False) for t in scenario.tests.values()]

    def round(self) -> None:
        self.losses = {"public": [], "local": []}
        teachers = [deepcopy(model).eval() for model in self.models]
        for phase, work in (
            ("public", self.public_phase),
            ("local", self.local_phase),
            ("evaluate", self.evaluate),
        ):
            start = time.perf_counter()
            work(teachers) if phase == "local" else work()  # type: ignore[operator]
            self.seconds[phase] = time.perf_counter() - start

    def public_phase(self) -> None:
        p = self.p
        for images, _ in self.public:
            images = images.to(self.device)
            outputs = []
            for model in self.models:
                h, z = model.train().features_and_logits(images)
                outputs.append((z, instance_similarity(h, p.similarity_temperature)))
            z_mean = sum(z.detach() for z, _ in outputs) / len(outputs)
            s_mean = sum(s.detach() for _, s in outputs) / len(outputs)
            for model, (z, s) in zip(self.models, outputs, strict=True):
                optimizer = Adam(model.parameters(), lr=p.public_lr)
                loss = fccm(z, z_mean, p.off_diagonal) + p.omega * fisl(s, s_mean)
                self.step(optimizer, loss, "public")

    def local_phase(self, teachers: list[nn.Module]) -> None:
        for model, teacher, loader in zip(self.models, teachers, self.private, strict=True):
            model.train()
            optimizer = Adam(model.parameters(), lr=self.p.local_lr)
            for _ in range(self.p.local_epochs):
                for images, labels in loader:
                    if len(labels) < 2:
                        continue
                    images, labels = images.to(self.device), labels.to(self.device)
                    with torch.no_grad():
                        targets = teacher(images)
                    z = model(images)
                    loss = cross_entropy(z, labels) + fntd(z, targets, labels, self.p.temperature)
                    self.step(optimizer, loss, "local")

    def step(self, optimizer: Optimizer, loss: Tensor, phase: str) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.losses[phase].append(loss.item())
        self.steps += 1

    @torch.no_grad()
    def evaluate(self) -> None:
        for model in self.models:
            model.eval()
            for loader in self.tests:
                hits = 0
                for images, labels in loader:
                    hits += (model(images.to(self.device)).argmax(1) == labels.to(self.device)).sum().item()


# -- fedchoir ----------------------------------------------------------------------------------------------------------


class Counted:
    """A trainer that counts the steps of another."""

    def __init__(self, inner: Trainer) -> None:
        self.inner = inner
        self.optimizer, self.forward = inner.optimizer, inner.forward
        self.accelerated, self.release = inner.accelerated, inner.release
        self.steps = 0

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        return self.inner.train(client, optimizer, loss, self._count(batches))

    def _count(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.steps += 1
            yield batch


class Ours:
    """Rounds of FCCL+ on an engine."""

    def __init__(self, method: Any, engine: Engine, tests: tuple[str, ...]) -> None:
        self.engine = engine
        self.rounds = Server(method, engine, tests).rounds()
        self.seconds: Seconds = {}
        self.losses: dict[str, float] = {}

    def round(self) -> None:
        (event,) = next(self.rounds)
        self.seconds = {phase: event["seconds"][phase] for phase in PHASES}
        reports = event["losses"].values()
        self.losses = {phase: statistics.mean(r[f"{phase}_loss"] for r in reports) for phase in ("public", "local")}


# -- both --------------------------------------------------------------------------------------------------------------


def plan_of(o: argparse.Namespace) -> Plan:
    settings = {"lr_schedule": "constant", "public_optimizer_lifetime": "batch", "public_augment": "weak"}
    given = {
        "local_epochs": o.epochs,
        "private": o.private,
        "public_size": o.public_size,
        "activation_budget_gb": o.activation_budget_gb,
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    models = tuple(o.models.split(",")) if o.models else None
    return make_plan(
        Experiment(
            method="fccl+", scenario=o.scenario, models=models, data_root=o.data_root, rounds=10_000,
            precision=o.precision, settings=settings,
        )
    )  # fmt: skip


def clock(work: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Wall-clock time and CPU time of this process; the latter does not depend on what else the machine does."""
    start = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def compare_work(plain: PlainLoop, ours: Ours, counted: Counted | None, sizes: list[int]) -> tuple[str, list[str]]:
    """The work of both in the first round, steps and mean losses, in words, and the phases whose losses differ."""
    if counted is not None:
        assert counted.steps == plain.steps, f"{counted.steps} steps of ours, {plain.steps} of the plain loop"
    local = iter(plain.losses["local"])
    theirs = {
        "public": statistics.mean(plain.losses["public"]),
        "local": statistics.mean(statistics.mean(next(local) for _ in range(n)) for n in sizes),
    }
    different = [phase for phase, value in theirs.items() if not value / 1.25 < ours.losses[phase] < value * 1.25]
    losses = ", ".join(f"{phase} {ours.losses[phase]:.3f} / {value:.3f}" for phase, value in theirs.items())
    return f"{plain.steps} steps each; losses, ours / plain: {losses}", different


def counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="digits-lite")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--models", help="a,b,c,d instead of the scenario's")
    parser.add_argument("--epochs", type=int, help="local epochs")
    parser.add_argument("--private", type=counts, help="private images of each client: 150,80,500,180")
    parser.add_argument("--public-size", type=int)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each, after a warm-up round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--devices", help="ours in several processes: cpu,cpu")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"), help="bf16: ours alone")
    parser.add_argument("--workers", type=int, default=0, help="processes of each DataLoader of the plain loop")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--activation-budget-gb", type=float, help="the option of the same name")
    return parser.parse_args()


def main() -> None:
    o = arguments()
    if o.threads:
        torch.set_num_threads(o.threads)
    plan = plan_of(o)
    method: Any
    method, scenario, public = prepare(plan)
    device = torch.device(o.device)
    alone = LocalEngine(method, scenario, public, device=device, precision=o.precision)
    models = [deepcopy(client.model).to(memory_format=torch.contiguous_format) for client in alone.clients]
    sizes = [client.steps_per_epoch() * plan.params.epochs_of(client.index) for client in alone.clients]
    plain = PlainLoop(models, scenario, public, plan.params, o)
    counted = None if o.devices else Counted(fast_trainer(device))
    with matmul_precision(plan.experiment.precision), ExitStack() as stack:
        if counted is None:
            devices = pick_devices(tuple(o.devices.split(",")), o.device)
            engine: Engine = stack.enter_context(
                started_engine(method, scenario, public, devices=devices, precision=o.precision)
            )
        else:
            for client in alone.clients:
                client.trainer = counted
            engine = alone
        ours = Ours(method, engine, tuple(scenario.tests))
        plain.round(), ours.round()
        same, different = compare_work(plain, ours, counted, sizes)
        images = sum(len(c.train) for c in scenario.clients)
        private = f"{images} private images, {plan.params.local_epochs} local epochs"
        tests = sum(map(len, scenario.tests.values()))
        print(f"{o.scenario}: {', '.join(plan.models)}; {private}, {len(public or [])} public, {tests} test images")
        how = f"{o.devices or o.device}, {torch.get_num_threads()} threads, {o.precision}, {o.repeats} pairs"
        print(f"{how}; {same}", flush=True)
        took: dict[str, list[tuple[float, float]]] = {}
        for _ in range(o.repeats):
            (a, a_cpu), (b, b_cpu) = clock(plain.round, device), clock(ours.round, device)
            took.setdefault("round", []).append((a, b))
            print(f"a pair of rounds: plain {a:.2f} s  ours {b:.2f} s", flush=True)
            if counted is not None:  # else most of our CPU time is in other processes
                took.setdefault("CPU time", []).append((a_cpu, b_cpu))
            for phase in PHASES:
                took.setdefault(phase, []).append((plain.seconds[phase], ours.seconds[phase]))
    for phase in (*PHASES, *(name for name in took if name not in PHASES)):
        plainly, mine = (statistics.median(pair[i] for pair in took[phase]) for i in (0, 1))
        ratios = [a / b for a, b in took[phase]]
        print(f"{phase:9} plain {plainly:8.2f} s  ours {mine:8.2f} s  ratio {statistics.median(ratios):5.2f}", end="")
        print(f"  ({min(ratios):.2f} to {max(ratios):.2f})")
    if different:
        raise SystemExit(f"the mean losses differ by more than a quarter: {', '.join(different)}")


if __name__ == "__main__":
    main()
