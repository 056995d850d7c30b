"""FedAvg on the local engine against the same FedAvg under Flower's own simulator (Ray), on a CPU.

    python benchmarks/flower_sim.py [--rounds 20] [--clients 40] [--private 32] [--model simple_cnn@8] [--epochs 1]

It needs ``pip install 'flwr[simulation]>=1.41,<1.42'``. Flower is given the best case: its clients train with the very
code of ours, models and data are built once in each of its processes, and it has one process a core. So both do the
same steps on the same batches, which the weights after a round must show. Three ratios come of one run:

- *whole*: from nothing to the last round, the start of Ray (ours: building the clients) included;
- *rounds*: from the first message to the last;
- *steady*: the median round of each, when all is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir import Experiment, experiment, methods, runner
from fedchoir.data.scenarios import Scenario
from fedchoir.engines.local import LocalEngine
from fedchoir.federation.loop import Federation
from fedchoir.federation.perform import perform
from fedchoir.federation.phases import Step

MANY = 10_000  # rounds that an experiment is said to have, so that none of those played is evaluated


@lru_cache(maxsize=1)
def engine(work: str) -> LocalEngine:
    """The clients of an experiment, built once in a process."""
    told = json.loads(work)
    settings = {"local_epochs": told["epochs"], "local_batch": told["batch"], "lr_schedule": "constant"}
    each = -(-told["clients"] // 4)  # clients that share a domain's images
    settings |= {"private": [told["private"] * each], "evaluate_every": MANY}
    wanted = Experiment(
        method="fedavg", scenario="digits-lite", models=(told["model"],), rounds=MANY, settings=settings
    )
    plan = experiment.plan(wanted)
    scenario = split(runner.load(plan), each, told["clients"])
    method = methods.get("fedavg")(plan.params, runner.make_task(plan, scenario, None))
    return LocalEngine(method, scenario, None, device=torch.device("cpu"))


def split(scenario: Scenario, each: int, count: int) -> Scenario:
    """The same images in the hands of more clients."""
    clients = [
        replace(data, name=f"{data.name}{n}", train=data.train.subset(part))
        for data in scenario.clients
        for n, part in enumerate(torch.arange(len(data.train)).chunk(each))
    ]
    return replace(scenario, clients=tuple(clients[:count]))


def ours(work: str, rounds: int) -> tuple[dict[str, Tensor], list[float]]:
    """The weights after the first round, and the times at which rounds began and ended."""
    made = engine(work)
    played = Federation(made.method, made, ()).rounds()
    times, first = [time.perf_counter()], None
    for _ in range(rounds):
        next(played)
        times.append(time.perf_counter())
        first = made.method.global_weights() if len(times) == 2 else first
    return first or {}, times


def flowers(work: str, rounds: int, start: dict[str, Tensor], cores: int) -> tuple[dict[str, Tensor], list[float]]:
    """The same, played by Flower's FedAvg strategy on its simulator."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()
    came: dict[str, Any] = {"times": []}
    clients = len(engine(work).clients)

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        sys.path.append(str(Path(__file__).parent))
        from flower_sim import engine as built  # a module's cache: one for each process, not one for each message

        made = built(work)
        client = made.clients[int(context.node_config["partition-id"])]
        client.begin(int(message.content["config"]["server-round"]) - 1)
        client.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        perform(client, Step(made.method.practise))
        arrays, count = ArrayRecord(client.model.state_dict()), MetricRecord({"num-examples": len(client.private)})
        return Message(content=RecordDict({"arrays": arrays, "metrics": count}), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            result = super().aggregate_train(*args, **kwargs)
            came["times"].append(time.perf_counter())
            came.setdefault("first", result[0])
            return result

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        came["times"].append(time.perf_counter())
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=rounds)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=resources)
    return came["first"].to_torch_state_dict(), came["times"]


def distance(one: dict[str, Tensor], two: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """How far two results are from each other, as a share of how far training went."""
    names = [name for name, t in one.items() if t.is_floating_point()]
    apart = sum(float((one[n] - two[n]).norm() ** 2) for n in names) ** 0.5
    way = sum(float((one[n] - start[n]).norm() ** 2) for n in names) ** 0.5
    return apart / way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--private", type=int, default=32, help="images of each client")
    parser.add_argument("--model", default="simple_cnn@8")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    o = parser.parse_args()
    try:
        import ray  # noqa: F401
    except ImportError:
        raise SystemExit("this benchmark needs Ray: pip install 'flwr[simulation]>=1.41,<1.42'") from None
    cores = len(os.sched_getaffinity(0))
    work = json.dumps({name: getattr(o, name) for name in ("clients", "private", "model", "epochs", "batch")})

    begun = time.perf_counter()
    made = engine(work)
    start = made.clients[0].snapshot()
    weights, times = ours(work, o.rounds)
    whole = times[-1] - begun
    begun = time.perf_counter()
    their_weights, their_times = flowers(work, o.rounds, start, cores)
    their_whole = time.perf_counter() - begun

    apart = distance(weights, their_weights, start)
    assert apart < 0.01, f"not the same work: after a round the weights differ by {apart:.2%} of the way they went"
    print(f"{len(made.clients)} clients of {o.private} images, {o.model}, {o.epochs} epochs, batches of {o.batch}")
    print(f"{cores} cores ({torch.get_num_threads()} threads of ours), {o.rounds} rounds; ", end="")
    print(f"after the first, weights differ by {apart:.4%} of the way they went")
    rows = [("whole", whole, their_whole), ("rounds", times[-1] - times[0], their_times[-1] - their_times[0])]
    steady = [statistics.median(b - a for a, b in pairwise(t)) for t in (times, their_times)]
    rows.append(("steady", steady[0], steady[1]))
    for name, mine, theirs in rows:
        print(f"{name:8} local engine {mine:8.3f} s   Flower's simulator {theirs:8.3f} s   ratio {theirs / mine:6.1f}")


if __name__ == "__main__":
    main()
