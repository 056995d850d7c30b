"""One way of making training steps of one model, for `architectures.py`, in a process of its own."""

from __future__ import annotations

import argparse
import math
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, one_hot

from fedchoir import methods
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.core.training import Batch, EagerTrainer, Loss, Trainer, WrappedTrainer
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.engines.local.engine import LocalEngine, fast_trainer
from fedchoir.experiments.run import matmul_precision
from synthetic_federation import synthetic

CLASSES, COLUMNS, EVER = 10, 32, 10**6
PASS = 4  # batches in an epoch
Options = argparse.Namespace
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model by its name in fedchoir, the side of its images (0: rows of a table) and the size of its batches."""

    model: str
    side: int
    batch: int


def table(count: int) -> TableSet:
    """Rows of normal numbers; some columns depend on the class."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (count,), generator=draw)
    rows = torch.randn((count, COLUMNS), generator=draw)
    rows[:, :CLASSES] += one_hot(labels, CLASSES)
    return TableSet(rows, labels, columns=tuple(Column(f"column{k}") for k in range(COLUMNS)))


def federation(case: Case, o: Options, trainer: Trainer, fused: bool, log: Any = lambda *_: None) -> Server:
    """One client that trains alone on generated samples, on the engine; it is never evaluated."""
    count = min(PASS, o.steps) * case.batch
    samples: Samples = synthetic(count, case.side, CLASSES) if case.side else table(count)
    classes, cls = tuple(map(str, range(CLASSES))), methods.get("solo")
    infos = (ClientInfo("client", case.model, count, 2, "global"),)
    spec = FederationSpec(classes, infos, EVER, 0, inputs=samples.input_spec)
    epochs = {"local_epochs": math.ceil(o.steps / PASS), "local_batch": case.batch, "local_lr": o.lr}
    method = cls(cls.Params(lr_schedule="constant", evaluate_every=EVER, **epochs), spec)
    tests = {"global": samples.subset(torch.arange(2)).for_every_client()}
    scenario = Scenario("generated", classes, (ClientData("client", samples, "global"),), tests)
    engine = LocalEngine(
        method, scenario, None, device=torch.device(o.device), precision=o.precision, fused=fused, trainer=trainer,
        progress=log,
    )  # fmt: skip
    for layer in engine.clients[0].model.modules():
        for name in {"p", "drop_prob"} & vars(layer).keys():
            setattr(layer, name, 0.0)
    return Server(method, engine, ("global",))


class Recorder(EagerTrainer):
    """Keeps the batches of the first round, and trains nothing."""

    def train(self, client: Client, optimizer: Any, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        self.model, self.batches = client.model, list(batches)
        return torch.zeros(())


class Watched(WrappedTrainer):
    """The engine's trainer. In the first round it keeps the loss of every step."""

    losses: list[Tensor] | None = None

    def train(self, client: Client, optimizer: Any, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        if self.losses is not None:
            return self.inner.train(client, optimizer, loss, batches)
        self.losses = [self.inner.train(client, optimizer, loss, [batch]) for batch in batches]
        return torch.stack(self.losses).mean()


class Plain:
    """An ordinary loop over batches in memory."""

    def __init__(self, case: Case, o: Options, way: str) -> None:
        recorder = Recorder()
        next(federation(case, o, recorder, fused=False).rounds())
        model = deepcopy(getattr(recorder.model, "net", recorder.model))  # a user's own model is inside another
        self.model: Any = model.to(memory_format=torch.contiguous_format).train()
        self.batches = [(b.inputs.contiguous(), b.labels) for b in recorder.batches]
        capturable = way == "plain-graph"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=o.lr, fused=True, capturable=capturable)
        self.bf16 = torch.autocast(o.device, torch.bfloat16) if o.precision == "bf16" else nullcontext()
        self.run, self.facts = self.step, {"parameters": sum(p.numel() for p in model.parameters())}

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        with self.bf16:
            logits = self.model(inputs)
        loss = cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def first(self) -> list[float]:
        return torch.stack([self.run(*batch).clone() for batch in self.batches]).tolist()

    def block(self) -> float:
        start = time.perf_counter()
        for batch in self.batches:
            self.run(*batch)
        synchronize()
        return (time.perf_counter() - start) / len(self.batches)


class PlainGraph(Plain):
    """The same step, captured once and replayed."""

    def first(self) -> list[float]:
        static, before = [t.clone() for t in self.batches[0]], deepcopy(self.model.state_dict())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step(*static)
        torch.cuda.current_stream().wait_stream(side)
        self.model.load_state_dict(before)
        for state in self.optimizer.state.values():
            for slot in state.values():
                slot.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(*static)

        def replay(*batch: Tensor) -> Tensor:
            for mine, new in zip(static, batch, strict=True):
                mine.copy_(new)
            graph.replay()
            return loss

        self.run = replay
        return super().first()


class Compiled(Plain):
    def first(self) -> list[float]:
        self.model = torch.compile(self.model, mode="max-autotune")
        return super().first()


class Ours:
    """The local phase on the engine."""

    def __init__(self, case: Case, o: Options, way: str) -> None:
        self.fused, self.kernels = way == "ours-fused", math.inf
        self.trainer = Watched(fast_trainer(torch.device(o.device)))
        server = federation(case, o, self.trainer, self.fused, lambda *_: self.began())
        self.kernels = max(0.0, time.perf_counter() - self.kernels)  # they are compiled last
        self.rounds, self.engine, self.steps = server.rounds(), server.engine, o.steps
        self.facts: Row = {}

    def began(self) -> None:
        self.kernels = min(self.kernels, time.perf_counter())

    def first(self) -> list[float]:
        next(self.rounds)
        model = self.engine.clients[0].model
        layers = sum("engines.local.fused" in type(m).__module__ for m in model.modules())
        self.facts = {"fused layers": layers, "notes": self.engine.notes, "kernels": self.kernels}
        return torch.stack(self.trainer.losses or []).tolist()

    def block(self) -> float:
        (event,) = next(self.rounds)
        return event["seconds"]["local"] / self.steps


WAYS: dict[str, Any] = {
    "plain": Plain, "plain-graph": PlainGraph, "compile": Compiled, "ours": Ours, "ours-fused": Ours,
}  # fmt: skip
NEEDS_CUDA = ("plain-graph", "ours-fused")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def end_with_parent(connection: Any) -> None:
    """Wait until the other end is closed, then end the group of this process. A signal to the parent's group does not
    reach it, and in the middle of a block it does not read the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)  # a hang-up is always reported
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def work(connection: Any, case: Case, way: str, o: Options) -> None:
    """Prepare one way, then measure a block whenever the parent asks."""
    os.setsid()  # so that processes that compile end with this one
    Thread(target=end_with_parent, args=(connection,), daemon=True).start()
    if not o.verbose:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(o.cache / "inductor")
    if way == "ours-fused":
        os.environ["TRITON_CACHE_DIR"] = str(o.cache / "triton")
    torch.backends.cudnn.benchmark = o.autotune
    try:
        with matmul_precision(o.precision):
            x = torch.ones(1, 8, 8, 8, device=o.device)  # starts CUDA, cuDNN and cuBLAS
            conv2d(x, x).flatten() @ x.flatten()[:1]
            runner = WAYS[way](case, o, way)
            synchronize()
            start = time.perf_counter()
            losses = runner.first()
            seconds = time.perf_counter() - start + runner.facts.get("kernels", 0.0)
            connection.send({"first": seconds, "losses": losses, **runner.facts})
            while connection.recv():
                connection.send({"ms": 1000 * runner.block()})
    except EOFError:
        pass
    except Exception as error:  # whatever a model or a compiler raises concerns this way only
        connection.send({"error": f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"})
