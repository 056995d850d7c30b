"""The multiprocess engine: clients distributed over processes, one per device. This process is the server.

A client stays in one process for the whole run and is an ordinary `Client`, so the results are those of the local
engine: they do not depend on the number of processes.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedchoir.core.actions import Action
from fedchoir.core.exchange import Reply
from fedchoir.core.interfaces import ReadState
from fedchoir.core.scores import Detail, Evaluation, TestScore
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.client_pool import CLIENT_LIST
from fedchoir.engines.local.engine import STATE_BUDGET, Progress, evaluates_once
from fedchoir.engines.messages import Envelope
from fedchoir.engines.multiprocess.load_balance import distribute, expected_costs
from fedchoir.engines.multiprocess.process import WorkerProcess
from fedchoir.methods.base import Method
from fedchoir.payload import Payload
from fedchoir.utils.threads import threads_for


class MultiprocessEngine:
    """Runs a method's actions on clients in several processes. `close` ends the processes."""

    def __init__(
        self,
        method: Method,
        scenario: Scenario,
        public: PublicSet | None,
        *,
        devices: Sequence[torch.device],
        precision: str = "fp32",
        fused: bool = False,
        progress: Progress = lambda client, phase: None,
        budget: float = STATE_BUDGET,
        folder: Path | None = None,
        pretrained: str | None = None,
    ) -> None:
        self.method = method
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        """Of each phase, the time of the slowest process."""
        self._progress = progress
        self._folder = folder
        self._seconds: dict[WorkerProcess, dict[str, float]] = {}  # of each process so far
        self._test_sizes = [len(test) for test in (*scenario.tests.values(), *scenario.own_tests.values())]
        self._shared_tests = len(scenario.tests)
        self._one_for_all = evaluates_once(method, scenario)
        costs = expected_costs(method)
        shares = distribute(costs, len(devices))
        loads = [sum(costs[k] for k in share) for share in shares]
        self._processes: list[WorkerProcess] = []
        try:
            for device, share, load in zip(devices, shares, loads, strict=False):
                slowest = load == max(loads)  # the others wait for it
                self._processes.append(WorkerProcess(device, share, threads_for(len(shares)), priority=slowest))
            for process in self._processes:  # one after the other: only one copy of the data is in transit
                process.call(
                    "start", method.name, method.public_set, method.params.model_dump(mode="json"), method.spec,
                    scenario if method.evaluates_on_pool else _only(scenario, process.clients), public,
                    str(process.device), precision,
                    str(folder / str(process.clients[0])) if folder else None,
                    {"fused": fused, "budget": budget / len(shares), "clients": process.clients,
                     "pretrained": pretrained},
                )  # fmt: skip
            list(self._results(self._processes))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for process in self._processes:
            process.stop()
        if self._folder is not None:  # a process that is killed leaves its files
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def notes(self) -> list[str]:
        """Those of the processes."""
        for process in self._processes:
            process.call("notes")
        return list(dict.fromkeys(note for _, notes in self._results(self._processes) for note in notes))

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """One message to each process with the actions of its clients; replies come as they arrive."""
        shared: dict[int, bytes] = {}
        busy = []
        for process in self._processes:
            if mine := [k for k in clients if k in process.clients]:
                process.call("execute", mine, round_index, self._has_global, actions=actions, shared=shared)
                busy.append(process)
        for _, reply in self._results(busy):
            yield Reply(**reply)

    def evaluate(self, weights: dict[str, Tensor] | None, round_index: int, detail: Detail) -> list[Evaluation | None]:
        """As `LocalEngine.evaluate`. The test sets of a global model are distributed over the processes."""
        if weights is not None and self._one_for_all:
            row = self._evaluate_global(weights, detail)
            kept = self._of_clients("validate_global", weights, round_index)
            shared, own = row[: self._shared_tests], row[self._shared_tests :]
            joined = self.method.spec.has_joined
            return [
                Evaluation((*shared, *own[k : k + 1]), kept[k]) if joined(k, round_index) else None
                for k in sorted(kept)
            ]
        found = self._of_clients("evaluate", weights, round_index, detail)
        return [found[k] for k in sorted(found)]

    def _of_clients(self, call: str, *arguments: Any) -> dict[int, Any]:
        """Call a function in every process that returns one value for each of its clients."""
        found: dict[int, Any] = {}
        for process in self._processes:
            process.call(call, *arguments)
        for process, values in self._results(self._processes):
            found |= zip(process.clients, values, strict=True)
        return found

    def _evaluate_global(self, weights: dict[str, Tensor], detail: Detail) -> list[TestScore]:
        tests = dict(zip(self._processes, distribute(self._test_sizes, len(self._processes)), strict=False))
        scores: dict[int, TestScore] = {}
        for process, numbers in tests.items():
            process.call("evaluate_global", weights, numbers, detail)
        for process, values in self._results(tests):
            scores |= zip(tests[process], values, strict=True)
        return [scores[number] for number in range(len(self._test_sizes))]

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """The clients' states as they arrive: a process waits until its next one is read. Each process also sends the
        list of its clients that are stored; a checkpoint has one list."""
        stored: list[Tensor] = []
        for process in self._processes:
            process.call("states", self._has_global)
        for _, (name, tensors) in self._results(self._processes):
            if name == CLIENT_LIST:
                stored.append(tensors["kept"])
            else:
                yield name, tensors
        yield CLIENT_LIST, {"kept": torch.cat(stored).sort().values}

    def saved(self, folder: Path) -> None:
        """Processes send what has changed since, and read the rest from there."""
        for process in self._processes:
            process.call("saved", str(folder))
        list(self._results(self._processes))

    def load(self, read: ReadState) -> None:
        for process in self._processes:
            process.call("load")
        for process, name in self._results(self._processes):
            process.send(Envelope({}, [Payload(read(name)).to_bytes()]))

    @property
    def _has_global(self) -> bool:
        return self.method.global_weights() is not None

    def _results(self, processes: Iterable[WorkerProcess]) -> Iterator[tuple[WorkerProcess, Any]]:
        """The values that processes send, as they arrive, until all of them have finished their call."""
        busy = set(processes)
        slowest = dict.fromkeys(self.seconds, 0.0)
        while busy:
            for process in cast(list[WorkerProcess], wait(busy)):  # type: ignore[arg-type]
                kind, value = process.receive()
                if kind == "progress":
                    self._progress(*value)
                elif kind == "value":
                    yield process, value
                else:
                    busy.discard(process)
                    before = self._seconds.get(process, dict.fromkeys(self.seconds, 0.0))
                    slowest = {phase: max(s, value[phase] - before[phase]) for phase, s in slowest.items()}
                    self._seconds[process] = value
        for phase, seconds in slowest.items():
            self.seconds[phase] += seconds


def _only(scenario: Scenario, clients: Sequence[int]) -> Scenario:
    """The scenario without the private data of all other clients."""
    none = torch.empty(0, dtype=torch.int64)
    data = (
        d if k in clients else replace(d, train=d.train.subset(none), validation=None)
        for k, d in enumerate(scenario.clients)
    )
    return replace(scenario, clients=tuple(data))
