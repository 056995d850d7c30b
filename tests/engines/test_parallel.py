"""Clients in several processes: the numbers of the local engine, whatever the number of processes, and no surprises
when one of them dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.helpers import Stop, StopAfter, assert_same

from fedchoir import Experiment, methods, run
from fedchoir.cli import app as cli
from fedchoir.core import checkpoint
from fedchoir.engines.multiprocess.load_balance import expected_costs, share_out
from fedchoir.utils.devices import describe, pick_devices
from fedchoir.utils.errors import UsageError, WorkerError

TWO = ("cpu", "cpu")


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "fedchoir.engines.multiprocess.worker" in p.cmdline()]


@pytest.mark.parametrize("name", ["fccl+", "fedavg", "fedct", "fbcl", "fedfoa", "choir with a lead"])
def test_the_numbers_are_those_of_the_local_engine(name: str, small: Callable[..., Experiment]) -> None:
    alone, together = small(name, "alone", rounds=2), small(name, "together", rounds=2, devices=TWO)
    run(alone)
    seen: list[str] = []
    result = run(together, observers=[Listener(seen)])
    assert_same(alone.out, together.out)
    assert result.model_dump()["device"].startswith("2 processes: cpu")
    assert set(seen) == {client["name"] for client in result.clients}
    assert not workers()


class Listener(StopAfter):
    """Notes whose turn it is."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(-1)
        self.seen = seen

    def client(self, name: str, phase: str) -> None:  # type: ignore[override]
        self.seen.append(name)


def test_a_run_goes_on_with_another_number_of_processes(small: Callable[..., Experiment]) -> None:
    """One, then two, then three."""
    straight, stopped = small("fccl+", "straight"), small("fccl+", "stopped")
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    with pytest.raises(Stop):
        run(stopped.model_copy(update={"devices": TWO}), resume=True, observers=[StopAfter(1)])
    run(stopped.model_copy(update={"devices": ("3",)}), resume=True)
    assert_same(straight.out, stopped.out)


class Ranks(StopAfter):
    """Notes which processes a shared GPU would serve first."""

    found: list[str]

    def round(self, event: dict[str, Any]) -> None:
        self.found = [process.environ()["CUDA_MPS_CLIENT_PRIORITY"] for process in workers()]


def test_the_process_with_the_most_to_do_goes_first_on_a_shared_gpu(small: Callable[..., Experiment]) -> None:
    ranks = Ranks(-1)
    run(small("fedavg", rounds=1, devices=TWO), observers=[ranks])  # three clients alike: two here, one there
    assert ranks.found == ["0", "1"]


class KillOne(StopAfter):
    """Kills a process after a round, as the system does when memory runs out."""

    def round(self, event: dict[str, Any]) -> None:
        if event["round"] == self.last:
            workers()[0].kill()


def test_a_process_that_dies_is_named_and_the_checkpoint_is_good(small: Callable[..., Experiment]) -> None:
    straight, killed = small("fedavg", "straight"), small("fedavg", "killed", devices=TWO)
    run(straight)
    with pytest.raises(WorkerError) as error:
        run(killed, observers=[KillOne(0)])
    assert str(error.value) == "the process on cpu was killed by signal 9"
    assert not workers()
    last = checkpoint.latest(killed.out / "checkpoint")
    assert last is not None
    assert checkpoint.facts(last)["round"] == 0
    run(killed.model_copy(update={"devices": None}), resume=True)
    assert_same(straight.out, killed.out)


@pytest.fixture
def failing(small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an experiment whose clients run a line of Python before they practise."""

    def make(line: str, **changes: Any) -> Experiment:
        plugin = tmp_path / "failing.py"
        plugin.write_text(
            "import torch\nfrom fedchoir.methods.fedavg import FedAvg\n\n\n"
            "class Failing(FedAvg):\n    name = 'failing'\n    title = paper = 'x'\n\n"
            f"    def practise(self, client):\n        {line}\n        super().practise(client)\n"
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


@pytest.mark.parametrize(("devices", "where"), [(None, ""), (TWO, "the process on cpu: ")])
def test_a_full_gpu_is_one_line_that_says_what_helps(
    devices: Any, where: str, failing: Callable[..., Experiment]
) -> None:
    full = "if client.round == 1: raise torch.OutOfMemoryError('CUDA out of memory. Tried ...')"
    experiment = failing(full, devices=devices)
    with pytest.raises(WorkerError, match=rf"^{where}the memory of cpu is full; fewer runs at once"):
        run(experiment)
    last = checkpoint.latest(experiment.out / "checkpoint")  # type: ignore[operator]
    assert last is not None
    assert checkpoint.facts(last)["round"] == 0


def test_the_command_ends_with_five(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def died() -> None:
        raise WorkerError("the process on cuda:1 was killed by signal 9")

    monkeypatch.setattr(cli, "app", died)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 5
    told = "fedchoir: stopped: the process on cuda:1 was killed by signal 9. The last checkpoint is intact: "
    assert capsys.readouterr().err == told + "--resume continues.\n"


def test_work_is_shared_out_by_cost(small: Callable[..., Experiment]) -> None:
    assert share_out([8, 7, 6, 5, 4], 2) == [[0, 3, 4], [1, 2]]
    assert share_out([0, 0, 0], 2) == [[0, 2], [1]]
    assert share_out([5], 4) == [[0]]
    from tests.federation_harness import FederationHarness

    costs = expected_costs(FederationHarness(small("fccl+")).method)
    assert costs == [48 * 2 + 40] * 3
    assert expected_costs(FederationHarness(small("fedavg")).method) == [48 * 2] * 3


def test_devices_are_named_or_counted() -> None:
    cpu = torch.device("cpu")
    assert pick_devices(None, "cpu") == [cpu]
    assert pick_devices(("2",), "cpu") == [cpu, cpu]
    assert Experiment(method="fedavg", devices=2).devices == ("2",)  # type: ignore[arg-type]
    assert Experiment(method="fedavg", devices="cuda:0, cuda:1").devices == ("cuda:0", "cuda:1")  # type: ignore[arg-type]
    assert json.loads(Experiment(method="fedavg", devices=TWO).model_dump_json())["devices"] == list(TWO)
    assert describe([cpu, cpu]).startswith("2 processes: cpu, ")
    with pytest.raises(UsageError, match="1 or more"):
        pick_devices(("0",), "cpu")
    with pytest.raises(UsageError, match=r"--devices 'gpu0' is not possible"):
        pick_devices(("gpu0", "cpu"), "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="torch sees no GPU"):
            pick_devices(("cuda:0", "cuda:1"), "auto")


def test_secure_sums_are_for_one_process_and_it_says_so(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="leave out --devices"):
        run(small("fedmd", "secure", devices=TWO, secure=True))
