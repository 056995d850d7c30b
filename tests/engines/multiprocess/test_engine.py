"""Clients in several processes: the numbers of the local engine for any number of processes, and clear errors when a
process dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import VARIANTS
from tests.helpers import Stop, StopAfter, assert_same

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.utils.errors import UsageError, WorkerError

TWO = ("cpu", "cpu")


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "fedchoir.engines.multiprocess.worker" in p.cmdline()]


class Progress(StopAfter):
    """Records which clients are reported."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.clients: set[str] = set()

    def client(self, name: str, phase: str) -> None:  # type: ignore[override]
        self.clients.add(name)


@pytest.mark.parametrize("name", ["fccl+", "fedavg", "fedct", "fbcl", "fedfoa", *VARIANTS])
def test_the_numbers_are_those_of_the_local_engine(name: str, small: Callable[..., Experiment]) -> None:
    local, distributed = small(name, "local", rounds=2), small(name, "distributed", rounds=2, devices=TWO)
    run(local)
    progress = Progress()
    result = run(distributed, observers=[progress])
    assert_same(local, distributed)
    assert result.model_dump()["device"].startswith("2 processes: cpu")
    assert progress.clients == {client["name"] for client in result.clients}
    assert result.seconds["local"] > 0
    assert not workers()


def test_a_run_resumes_with_another_number_of_processes(small: Callable[..., Experiment]) -> None:
    """One, then two, then three."""
    straight, stopped = small("fccl+", "straight"), small("fccl+", "stopped")
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    with pytest.raises(Stop):
        run(stopped.model_copy(update={"devices": TWO}), resume=True, observers=[StopAfter(1)])
    run(stopped.model_copy(update={"devices": ("3",)}), resume=True)
    assert_same(straight, stopped)


class Priorities(StopAfter):
    """Records the order in which a shared GPU would serve the processes."""

    values: list[str]

    def round(self, event: dict[str, Any]) -> None:
        self.values = [process.environ()["CUDA_MPS_CLIENT_PRIORITY"] for process in workers()]


def test_the_process_with_the_most_work_has_priority_on_a_shared_gpu(small: Callable[..., Experiment]) -> None:
    priorities = Priorities(-1)
    run(small("fedavg", rounds=1, devices=TWO), observers=[priorities])  # three equal clients: two and one
    assert priorities.values == ["0", "1"]


class KillOne(StopAfter):
    """Kills a process after a round, as the system does when memory runs out."""

    def round(self, event: dict[str, Any]) -> None:
        if event["round"] == self.last:
            workers()[0].kill()


def test_a_dead_process_is_named_and_the_checkpoint_is_intact(small: Callable[..., Experiment]) -> None:
    straight, killed = small("fedavg", "straight"), small("fedavg", "killed", devices=TWO, checkpoint_every=1)
    run(straight)
    with pytest.raises(WorkerError, match=r"^the process on cpu was killed by signal 9"):
        run(killed, observers=[KillOne(0)])
    assert not workers()
    last = checkpoint.latest(killed.out / "checkpoint")  # type: ignore[operator]
    assert last is not None
    assert checkpoint.facts(last)["round"] == 0
    run(killed.model_copy(update={"devices": None}), resume=True)
    assert_same(straight, killed)


@pytest.fixture
def failing(small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an experiment whose clients run a line of Python before their local update."""

    def make(line: str, **changes: Any) -> Experiment:
        plugin = tmp_path / "failing.py"
        plugin.write_text(
            "import torch\nfrom fedchoir.methods.fedavg import FedAvg\n\n\n"
            "class Failing(FedAvg):\n    name = 'failing'\n    title = paper = 'x'\n\n"
            f"    def local_update(self, client):\n        {line}\n        super().local_update(client)\n"
        )
        monkeypatch.setenv("FEDCHOIR_PLUGINS", str(plugin))
        methods.registry.cache_clear()
        return small("failing", models=("mlp",), rounds=2, **changes)

    yield make
    monkeypatch.undo()
    methods.registry.cache_clear()


def test_an_error_in_a_process_is_one_line(failing: Callable[..., Experiment]) -> None:
    experiment = failing("raise ArithmeticError('no\\nluck')", devices=TWO)
    with pytest.raises(WorkerError, match=r"^the process on cpu: ArithmeticError: no$"):
        run(experiment)
    assert not workers()
    assert not (experiment.out / "result.json").exists()  # type: ignore[operator]


def test_a_usage_error_in_a_process_stays_one(failing: Callable[..., Experiment]) -> None:
    line = "from fedchoir.utils.errors import UsageError; raise UsageError('wrong value')"
    with pytest.raises(UsageError, match=r"^wrong value$"):
        run(failing(line, devices=TWO))


@pytest.mark.parametrize(("devices", "where"), [(None, ""), (TWO, "the process on cpu: ")])
def test_a_full_gpu_is_one_line_with_advice(devices: Any, where: str, failing: Callable[..., Experiment]) -> None:
    full = "if client.round == 1: raise torch.OutOfMemoryError('CUDA out of memory. Tried ...')"
    experiment = failing(full, devices=devices, checkpoint_every=1)
    with pytest.raises(WorkerError, match=rf"^{where}the memory of cpu is full; fewer runs at once") as caught:
        run(experiment)
    assert caught.value.gpu_full
    last = checkpoint.latest(experiment.out / "checkpoint")  # type: ignore[operator]
    assert last is not None
    assert checkpoint.facts(last)["round"] == 0


def test_secure_aggregation_needs_one_process(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="in one process: give one device"):
        run(small("fedmd", "secure", devices=TWO, secure=True))
