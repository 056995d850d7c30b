"""The parallel engine: clients shared out over processes, one a device. This process plays the server.

Every client lives in one process for the whole run and is the same `Client` as ever, so the numbers are those of the
local engine: which process a client is in, and how many there are, changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir.core.actions import Action
from fedchoir.core.exchange import Reply
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.client_pool import KEPT
from fedchoir.engines.local.engine import STATE_BUDGET, Progress
from fedchoir.engines.messages import Envelope, pack_action, pack_task, unpack_reply
from fedchoir.engines.multiprocess.data_transfer import pack_public, pack_scenario
from fedchoir.engines.multiprocess.load_balance import expected_costs, share_out
from fedchoir.engines.multiprocess.pipe import readable
from fedchoir.engines.multiprocess.process import Process
from fedchoir.methods.base import Method
from fedchoir.payload import Payload
from fedchoir.utils.threads import threads_for


class MultiprocessEngine:
    """Runs a method's actions on clients that live in several processes. A context: it ends its processes."""

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
    ) -> None:
        self.method = method
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        """Of each phase, what the slowest process took."""
        self._progress = progress
        self._folder = folder
        self._counted: dict[Process, dict[str, float]] = {}
        self._shapes: dict[str, Tensor] | None = None
        self._test_sizes = [len(test) for test in (*scenario.tests.values(), *scenario.own_tests.values())]
        self._shared_tests = len(scenario.tests)
        costs = expected_costs(method)
        shares = share_out(costs, len(devices))
        loads = [sum(costs[k] for k in share) for share in shares]
        self.processes: list[Process] = []
        try:
            for device, share, load in zip(devices, shares, loads, strict=False):
                first = load == max(loads)  # the one that the others will wait for
                self.processes.append(Process(device, share, threads_for(len(shares)), first=first))
            self._home = {k: process for process in self.processes for k in process.share}
            for process in self.processes:  # one after the other: no more than one copy of the data is under way
                letter = self._beginning(process, scenario, public, precision)
                letter.header |= {
                    "lean": fused,
                    "budget": str(budget / len(self.processes)),
                    "folder": str(folder / str(process.share[0])) if folder else None,
                }
                process.send(letter)
            list(self._answers(dict.fromkeys(self.processes)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> MultiprocessEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.stop()
        if self._folder is not None:  # a process that is ended so leaves its files
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- asking ----------------------------------------------------------------------------------------------------

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """One letter to each process with what its clients are to do; their replies come as they arrive."""
        packed: dict[int, bytes] = {}
        letters: dict[Process, Envelope | None] = {}
        for process in self.processes:
            if here := [k for k in clients if k in process.share]:
                letter = Envelope({"do": "ask", "clients": here, "round": round_index, **self._facts()}, shared=packed)
                letter.header["actions"] = [pack_action(letter, action, *here) for action in actions]
                letters[process] = letter
        for _, answer in self._answers(letters):
            parts, _, _ = unpack_reply(answer)
            yield Reply(answer.header["client"], parts, answer.header["report"])

    def evaluate(self, weights: dict[str, Tensor] | None) -> list[list[float]]:
        """As `LocalEngine.evaluate`: clients are scored where they live; the test sets of one global model are shared
        out over the processes."""
        if weights is not None and not self.method.evaluates_per_client:
            return self._score(Payload(weights))
        payload = None if weights is None else Payload(weights)
        rows: dict[int, list[float]] = {}
        letters = {process: self._letter("evaluate", payload) for process in self.processes}
        for process, answer in self._answers(letters):
            rows |= zip(process.share, answer.header["rows"], strict=True)
        return [rows[k] for k in sorted(rows)]

    def _score(self, weights: Payload) -> list[list[float]]:
        shares = dict(zip(self.processes, share_out(self._test_sizes, len(self.processes)), strict=False))
        letters = {process: self._letter("score", weights, tests=tests) for process, tests in shares.items()}
        scores: dict[int, float] = {}
        for process, answer in self._answers(letters):
            scores |= zip(shares[process], answer.header["row"], strict=True)
        row = [scores[number] for number in range(len(self._test_sizes))]
        shared, own = row[: self._shared_tests], row[self._shared_tests :]
        return [[*shared, *own[k : k + 1]] for k in range(len(self._home))]

    def _letter(self, do: str, weights: Payload | None, **facts: Any) -> Envelope:
        letter = Envelope({"do": do, **facts})
        letter.header["weights"] = None if weights is None else letter.add(weights)
        return letter

    def _answers(self, letters: Mapping[Process, Envelope | None]) -> Iterator[tuple[Process, Envelope]]:
        """Send letters (None: one is under way) and give what comes back, until every process says that it is done."""
        for process, letter in letters.items():
            if letter is not None:
                process.send(letter)
        busy = {process.pipe: process for process in letters}
        took = dict.fromkeys(self.seconds, 0.0)
        while busy:
            for pipe in readable(busy):
                process = busy[pipe]
                answer = process.receive()
                if answer.header["said"] == "done":
                    del busy[pipe]
                    took = {phase: max(took[phase], s) for phase, s in self._since(process, answer).items()}
                elif answer.header["said"] == "progress":
                    self._progress(answer.header["client"], answer.header["phase"])
                else:
                    yield process, answer
        for phase, value in took.items():
            self.seconds[phase] += value

    def _since(self, process: Process, answer: Envelope) -> dict[str, float]:
        """Seconds that a process has worked since it said so last."""
        before = self._counted.get(process, dict.fromkeys(self.seconds, 0.0))
        self._counted[process] = answer.header["seconds"]
        return {phase: value - before[phase] for phase, value in answer.header["seconds"].items()}

    # -- state -----------------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """One client's state after the other, as they come: processes wait until theirs is wanted. Each process also
        tells which clients it keeps; the checkpoint has one list."""
        kept: list[Tensor] = []
        for _, answer in self._answers(dict.fromkeys(self.processes, Envelope({"do": "states", **self._facts()}))):
            name, tensors = answer.header["name"], dict(answer.get(0)) if answer.blobs else None
            if name == KEPT and tensors is not None:
                kept.append(tensors["kept"])
            else:
                yield name, tensors
        yield KEPT, {"kept": torch.cat(kept).sort().values}

    def _facts(self) -> dict[str, Any]:
        """What the server alone knows and clients at rest go by."""
        return {"global": self.method.global_weights() is not None}

    def saved(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        pass  # processes send what has changed since they were loaded, again and again

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        for process, answer in self._answers({process: Envelope({"do": "load"}) for process in self.processes}):
            process.send(Envelope({}, [Payload(read(answer.header["name"])).to_bytes()]))

    def model_shapes(self) -> dict[str, Tensor]:
        """The state of the shared architecture, for checking weights that arrive."""
        if self._shapes is None:
            answers = self._answers({self.processes[0]: Envelope({"do": "shapes"})})
            (self._shapes,) = (dict(answer.get(0)) for _, answer in answers)
        return self._shapes

    # -- the beginning ---------------------------------------------------------------------------------------------

    def _beginning(self, process: Process, scenario: Scenario, public: PublicSet | None, precision: str) -> Envelope:
        """All that a process needs to know, with the images of its own clients."""
        letter = Envelope({"do": "begin"})
        letter.header |= {
            "device": str(process.device),
            "precision": precision,
            "method": self.method.name,
            "settings": self.method.params.model_dump(mode="json"),
            "task": pack_task(self.method.task),
            "share": process.share,
            "scenario": pack_scenario(letter, scenario, process.share),
            "public": pack_public(letter, public),
        }
        return letter
