"""Server time, memory and bytes of a round by the number of registered clients K, of participants n, and the payload.

    python benchmarks/server_scale.py [--clients 10,…,100000] [--participants 10,100,1000] [--check 1000000]

The server's own loop runs with a method of the package. No client trains: every reply is bytes with the declared
tensors, and the server decodes, checks, compares and aggregates it as it does those of real clients. Network and TLS
are not included. Each setting runs in its own process, with one thread. Time is the CPU time of the process, and memory
its peak above what it had before, with all imports. Formulas are fitted to the relative error, without negative terms:

    milliseconds = a + b·K + c·n        megabytes = a + b·K + c·n

``--check`` measures one K that the fit does not know and prints it beside the formula.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from fedchoir import methods
from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply, state_shapes
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, declared_by, zero_payload
from fedchoir.utils.input_spec import InputSpec

PUBLIC = {"public_size": 100, "public_batch": 100}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "weights, mean": ("fedavg", "logistic", {}),
    "logits on 100 public samples, mean": ("fedmd", "logistic", {**PUBLIC, "pretrain_epochs": 0, "average": "never"}),
    "prototypes of 10 classes": ("fedproto", "logistic", {"average": "never"}),
    "logits and similarities, mean": ("fccl+", "logistic", {**PUBLIC, "pretrain_epochs": 0, "average": "never"}),
    "weights, median: a robust rule": ("fedavg", "logistic", {"robust": "median"}),
}
WARM_UP = 1  # rounds before those that count; the first sets all clients up


class Replies:
    """An engine without clients: it answers every exchange with the declared tensors."""

    notes: Sequence[str] = ()

    def __init__(self, method: Method) -> None:
        self.method = method
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._raw: dict[str, list[bytes]] = {}

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        exchanges = [action for action in actions if isinstance(action, Exchange)]
        for k in clients:
            payloads = [Payload.from_bytes(raw) for exchange in exchanges for raw in self._bytes(exchange, k)]
            yield Reply(k, payloads, {})

    def _bytes(self, exchange: Exchange, client: int) -> list[bytes]:
        """A reply as it crosses the wire. All clients have one architecture, so it is made once."""
        name = f"{exchange.function.__name__} {len(exchange.batches)}"
        if name not in self._raw:
            declared, spec = declared_by(exchange.function), self.method.spec
            model, modules = state_shapes(self.method, exchange.function, client)
            own = [batch.dims for batch in exchange.batches] or [{}]
            zeros = [zero_payload(declared, {**spec.dims, **exchange.dims, **d}, model, modules) for d in own]
            self._raw[name] = [_ones(payload).to_bytes() for payload in zeros]
        return self._raw[name]

    def evaluate(self, *_: Any) -> list[None]:
        return [None] * len(self.method.spec.clients)

    def states(self) -> Iterator[tuple[str, None]]:
        return iter(())


def _ones(payload: Payload) -> Payload:
    return Payload(
        {name: torch.ones_like(t) for name, t in payload.items()}, scalars=dict.fromkeys(payload.scalars, 1.0)
    )


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory(kind: str) -> float:
    """VmRSS, the memory of this process now, or VmHWM, the largest since `reset_peak`, in MB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def running_server(family: str, registered: int, participants: int) -> Server:
    name, model, settings = FAMILIES[family]
    cls = methods.get(name)
    infos = tuple(ClientInfo(f"client-{k}", model, 100, 10, "all") for k in range(registered))
    classes, public = tuple(map(str, range(10))), settings.get("public_size", 0)
    spec = FederationSpec(classes, infos, 10**6, 0, public_size=public, inputs=InputSpec.image(32))
    given = {"image_size": 32, "fraction": participants / registered, "evaluate_every": 10**6, **settings}
    method = cls(cls.Params(**given), spec)
    return Server(method, Replies(method), ("all",))  # type: ignore[arg-type]


def measure(family: str, registered: int, participants: int, rounds: int) -> dict[str, float]:
    """One setting, in this process."""
    gc.collect()
    before = memory("VmRSS")
    reset_peak()
    server = running_server(family, registered, participants)
    seconds, last = [], {}
    running = server.rounds()
    for _ in range(WARM_UP + rounds):
        start = time.process_time()
        (last,) = next(running)
        seconds.append(time.process_time() - start)
    assert len(last["clients"]) == participants
    assert not last["left_out"]
    return {
        "first": seconds[0], "seconds": float(np.median(seconds[WARM_UP:])), "memory": memory("VmHWM") - before,
        "up": last["bytes_up"] / participants, "down": last["bytes_down"] / participants, "messages": last["messages"],
    }  # fmt: skip


def in_new_process(family: str, registered: int, participants: int, rounds: int) -> dict[str, float]:
    """`measure` in a copy of this process, which has the imports already."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(measure, (family, registered, participants, rounds))


def fitted(points: Sequence[tuple[int, int]], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of 1, K and n, none negative, by least squares of the relative error; and the relative residuals."""
    terms = np.array([(1.0, k, n) for k, n in points])
    target = np.maximum(np.array(values), 1e-9)
    coefficients, _ = nnls(terms / target[:, None], np.ones(len(target)))
    return coefficients, terms @ coefficients / target - 1


def formula(c: np.ndarray, unit: str) -> str:
    return f"{c[0]:.3g} + {c[1]:.3g}·K + {c[2]:.3g}·n {unit}"


def report(
    family: str, found: dict[tuple[int, int], dict[str, float]], check: tuple[int, int] | None, rounds: int
) -> None:
    method = FAMILIES[family][0]
    print(f"\n{family} ({method})", flush=True)
    print("       K      n   ms a round   ms a reply   MB above imports   KB up a reply   KB down   first round s")
    for (k, n), row in found.items():
        print(
            f"{k:8d} {n:6d} {1000 * row['seconds']:12.2f} {1000 * row['seconds'] / n:12.3f} {row['memory']:18.1f} "
            f"{row['up'] / 1000:15.1f} {row['down'] / 1000:9.1f} {row['first']:15.2f}"
        )
    points = list(found)
    measured = in_new_process(family, *check, rounds) if check else {}
    for what, unit, scale in (("seconds", "ms", 1000.0), ("memory", "MB", 1.0)):
        c, residuals = fitted(points, [scale * row[what] for row in found.values()])
        off = f"residuals: median {np.median(abs(residuals)):.0%}, largest {abs(residuals).max():.0%}"
        print(f"  {what} = {formula(c, unit)}; {off}")
        for n in (10, 100, 1000, 10000):
            print(f"    K = 1,000,000, n = {n:5d}: {c @ (1.0, 1e6, n):10.1f} {unit}")
        if check is not None:
            value = scale * measured[what]
            predicted = float(c @ (1.0, *check))
            print(
                f"    measured at K = {check[0]:,}, n = {check[1]}: {value:.1f} {unit}, formula {predicted:.1f} {unit}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="10,100,1000,10000,100000")
    parser.add_argument("--participants", default="10,100,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", help="a K to measure beside the formula, with 100 participants")
    o = parser.parse_args()
    torch.set_num_threads(1)
    counts = [int(k) for k in o.clients.split(",")]
    sizes = [int(n) for n in o.participants.split(",")]
    print(f"one thread, median of {o.rounds} rounds, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for family in FAMILIES:
        next(running_server(family, 10, 10).rounds())  # imports
        points = [(k, n) for n in sizes for k in counts if n <= k]
        found = {(k, n): in_new_process(family, k, n, o.rounds) for k, n in points}
        report(family, found, (int(o.check), 100) if o.check else None, o.rounds)


if __name__ == "__main__":
    main()
