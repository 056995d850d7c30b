"""FedAvg here against the same FedAvg under Flower's own simulator (Ray), on a CPU.

    python benchmarks/flower_sim.py [--app usual|best] [--rounds 20] [--clients 40] [--private 32] [--processes 2]

It needs ``pip install 'flwr[simulation]>=1.41,<1.42'``. The Flower app is written in one of two ways:

- *usual*: as in Flower's own PyTorch quickstart: every message builds the model, loads its images through a
  `DataLoader` with PIL transforms and trains, with the simulator's default of two cores per client;
- *best*: the clients are our own, built once in each process, with one process per core. The rest is the cost of the
  simulator itself.

With one batch per client and round (the default), and with *best*, the weights after a round must be the same.
One run gives three ratios:

- *whole*: from the start to the last round, including the start of Ray (ours: building the clients);
- *rounds*: from the first message to the last;
- *steady*: the median round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import transforms as T

from fedchoir import Experiment, methods
from fedchoir.core.actions import Step, perform
from fedchoir.core.server import Server
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.multiprocess.engine import MultiprocessEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import make_spec, prepare
from fedchoir.methods.base import Method
from fedchoir.models import build
from naive import Pictures

MANY = 10_000  # rounds of the experiment, so that none of the first ones is evaluated


@lru_cache(maxsize=1)
def engine(work: str) -> LocalEngine:
    """The clients of an experiment, built once in a process."""
    method, scenario = federated(work)
    return LocalEngine(method, scenario, None, device=torch.device("cpu"))


def federated(work: str) -> tuple[Method, Scenario]:
    """FedAvg and the scenario."""
    options = json.loads(work)
    settings = {"local_epochs": options["epochs"], "local_batch": options["batch"], "lr_schedule": "constant"}
    each = -(-options["clients"] // 4)  # clients that share a domain's images
    settings |= {"private": [options["private"] * each], "evaluate_every": MANY}
    experiment = Experiment(
        method="fedavg", scenario="digits-lite", models=(options["model"],), rounds=MANY, settings=settings
    )
    plan = make_plan(experiment)
    scenario = split(prepare(plan)[1], each, options["clients"])
    return methods.get("fedavg")(plan.params, make_spec(plan, scenario, None)), scenario


def split(scenario: Scenario, each: int, count: int) -> Scenario:
    """The same images divided among more clients."""
    clients = [
        replace(data, name=f"{data.name}{n}", train=data.train.subset(part))
        for data in scenario.clients
        for n, part in enumerate(torch.arange(len(data.train)).chunk(each))
    ]
    return replace(scenario, clients=tuple(clients[:count]))


def ours(work: str, rounds: int, processes: int) -> tuple[dict[str, Tensor], list[float]]:
    """The weights after the first round, and the times at which rounds started and ended."""
    with ExitStack() as stack:
        made: LocalEngine | MultiprocessEngine = engine(work)
        if processes > 1:
            devices = [torch.device("cpu")] * processes
            made = stack.enter_context(closing(MultiprocessEngine(*federated(work), None, devices=devices)))
        server_rounds = Server(made.method, made, ()).rounds()
        times, first = [time.perf_counter()], None
        for _ in range(rounds):
            next(server_rounds)
            times.append(time.perf_counter())
            first = made.method.global_weights() if len(times) == 2 else first
        return first or {}, times


Trained = tuple[dict[str, Tensor], int]


def best(work: str, number: int, index: int, weights: dict[str, Tensor]) -> Trained:
    """One client's training in one round with fedchoir's client."""
    torch.set_num_threads(1)
    made = engine(work)
    client = made.clients[number]
    client.begin(index)
    client.model.load_state_dict(weights)
    perform(client, Step(made.method.local_update))
    return client.model.state_dict(), len(client.private)


def usual(work: str, number: int, index: int, weights: dict[str, Tensor]) -> Trained:
    """The same as in Flower's quickstart."""
    options = json.loads(work)
    model = build(options["model"], 10)
    model.load_state_dict(weights)
    loader = DataLoader(pictures(work, number), batch_size=options["batch"], shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=engine(work).method.params.local_lr)
    model.train()
    running_loss = 0.0
    for _ in range(options["epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return model.state_dict(), len(loader.dataset)  # type: ignore[arg-type]


@cache
def pictures(work: str, number: int) -> Pictures:
    train = engine(work).clients[number].private
    transform = T.Compose([T.ToTensor(), T.Normalize(train.mean, train.std)])
    return Pictures(train.inputs, train.labels.tolist(), transform)


def flowers(app: str, work: str, rounds: int, start: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[float]]:
    """The same with Flower's FedAvg strategy on its simulator."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()
    record: dict[str, Any] = {"times": []}
    clients = len(engine(work).clients)

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        sys.path.append(str(Path(__file__).parent))
        import flower_sim  # so that its caches last for the process and not for one message

        weights = message.content["arrays"].to_torch_state_dict()
        number, index = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"]) - 1
        state, images = getattr(flower_sim, app)(work, number, index, weights)
        content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": images})})
        return Message(content=content, reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            result = super().aggregate_train(*args, **kwargs)
            record["times"].append(time.perf_counter())
            record.setdefault("first", result[0])
            return result

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        record["times"].append(time.perf_counter())
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=rounds)

    one_core: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    config = one_core if app == "best" else None
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=config)
    return record["first"].to_torch_state_dict(), record["times"]


def distance(one: dict[str, Tensor], two: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """The distance of two results, relative to the distance that training covered."""
    names = [name for name, t in one.items() if t.is_floating_point()]
    apart = sum(float((one[n] - two[n]).norm() ** 2) for n in names) ** 0.5
    covered = sum(float((one[n] - start[n]).norm() ** 2) for n in names) ** 0.5
    return apart / covered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--app", default="usual", choices=("usual", "best"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--private", type=int, default=32, help="images of each client")
    parser.add_argument("--model", default="simple_cnn@8")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--processes", type=int, default=1, help="of fedchoir; Flower always uses all cores")
    o = parser.parse_args()
    try:
        import ray  # noqa: F401
    except ImportError:
        raise SystemExit("this benchmark needs Ray: pip install 'flwr[simulation]>=1.41,<1.42'") from None
    cores = len(os.sched_getaffinity(0))
    work = json.dumps({name: getattr(o, name) for name in ("clients", "private", "model", "epochs", "batch")})

    started = time.perf_counter()
    made = engine(work)
    start = made.clients[0].snapshot()
    weights, times = ours(work, o.rounds, o.processes)
    whole = times[-1] - started
    started = time.perf_counter()
    their_weights, their_times = flowers(o.app, work, o.rounds, start)
    their_whole = time.perf_counter() - started

    apart = distance(weights, their_weights, start)
    alike = o.app == "best" or (o.private <= o.batch and o.epochs == 1)
    assert apart < 0.01 or not alike, f"not the same work: after a round the weights differ by {apart:.2%}"
    print(f"{len(made.clients)} clients of {o.private} images, {o.model}, {o.epochs} epochs, batches of {o.batch}")
    print(f"app: {o.app}; {cores} cores ({o.processes} processes of ours), {o.rounds} rounds; ", end="")
    print(f"after the first, weights differ by {apart:.4%} of the training distance")
    rows = [("whole", whole, their_whole), ("rounds", times[-1] - times[0], their_times[-1] - their_times[0])]
    steady = [statistics.median(b - a for a, b in pairwise(t)) for t in (times, their_times)]
    rows.append(("steady", steady[0], steady[1]))
    for name, mine, theirs in rows:
        print(f"{name:8} fedchoir {mine:8.3f} s   Flower's simulator {theirs:8.3f} s   ratio {theirs / mine:6.1f}")


if __name__ == "__main__":
    main()
