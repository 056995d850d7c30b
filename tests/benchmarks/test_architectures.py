"""The ways of making training steps, of which a CPU can run some, give the same losses; a failure ends one way only."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import architectures
from architecture_ways import WAYS, Case, Plain, Row

CPU = ["--device", "cpu", "--blocks", "2", "--steps", "2"]


def test_ways_are_measured_and_failures_take_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "steps.json"
    arguments = ["--models", "mlp,none", "--ways", "plain,plain-graph,ours", "--batches", "mlp=8", "--out", str(out)]
    rows = architectures.main([*CPU, *arguments])
    assert [(row["model"], row["way"]) for row in rows] == [
        (m, w) for m in ("mlp", "none") for w in ("plain", "plain-graph", "ours")
    ]
    plain, graph, ours, *failed = rows
    assert len(plain["ms"]) == len(ours["ms"]) == len(plain["losses"]) == 2
    assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert ours["difference"] < 1e-5
    assert graph["error"] == failed[1]["error"] == "needs a CUDA device"
    assert "unknown model 'none'" in failed[0]["error"]
    assert json.loads(out.read_text())["rows"] == rows
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("mlp ", "none ")) for line in lines) == 6


def test_a_way_whose_loss_is_not_finite_is_not_reported() -> None:
    (row,) = architectures.main([*CPU, "--models", "mlp", "--ways", "ours", "--lr", "1e30", "--steps", "8"])
    assert row["error"] == "its loss is not finite"
    assert row["ms"] == []


def test_what_does_not_fit_into_the_time_is_not_measured() -> None:
    (row,) = architectures.main([*CPU, "--models", "mlp", "--ways", "ours", "--seconds", "0.000001"])
    assert "not measured" in row["error"] or row["error"].startswith("over")


def test_a_way_whose_process_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other ways are still measured."""

    def killed(self: architectures.Process, limit: float, measure=architectures.Process.measure) -> None:
        if self.row["way"] == "plain" and "error" not in self.row:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()
        measure(self, limit)

    monkeypatch.setattr(architectures.Process, "measure", killed)
    plain, ours = architectures.main([*CPU, "--models", "mlp", "--ways", "plain,ours", "--batches", "mlp=8"])
    assert plain["error"] == "its process ended with status -9"
    assert len(ours["ms"]) == 2


@pytest.mark.parametrize("compiling", [True, False])
def test_an_error_leaves_no_process(compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for this one, which would wait for them at its exit."""
    begun: list[int] = []

    def interrupted(self: architectures.Process, limit: float) -> Row:
        begun.append(self.process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(architectures.Process, "answer" if compiling else "measure", interrupted)
    ways = "compile,plain" if compiling else "plain,ours"
    with pytest.raises(KeyboardInterrupt):
        architectures.main([*CPU, "--models", "mlp", "--ways", ways, "--batches", "mlp=8"])
    assert begun
    assert multiprocessing.active_children() == []


def test_a_loss_of_zero_is_compared() -> None:
    rows: list[Row] = [{"model": "m", "way": w, "ms": [1.0], "losses": [0.0]} for w in ("plain", "ours")]
    architectures.compare(rows)
    assert rows[1]["difference"] == 0.0


def own_groups(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if os.getpgid(child.pid) == child.pid]


def test_a_way_ends_with_the_benchmark() -> None:
    """Even in the middle of a long block: it has a group of its own, which a signal to the benchmark does not reach."""
    script, steps = str(Path(architectures.__file__)), ["--steps", "400000000", "--blocks", "1"]
    arguments = ["--device", "cpu", "--models", "mlp", "--batches", "mlp=8", "--ways", "ours", *steps]
    part = subprocess.Popen([sys.executable, script, *arguments], start_new_session=True)
    try:
        benchmark, ways = psutil.Process(part.pid), []
        while not ways or ways[0].cpu_times().user < 3:  # it trains
            time.sleep(0.1)
            ways = own_groups(benchmark)
    finally:
        os.killpg(part.pid, signal.SIGKILL)
        part.wait()
    gone, _ = psutil.wait_procs(ways, timeout=10)
    for way in ways:
        if way not in gone and way.status() != psutil.STATUS_ZOMBIE:
            way.kill()
            pytest.fail("the way is still there")


@pytest.mark.parametrize("model", ["torchvision.models:resnet18", "efficientnet_b0@0.25"])
def test_a_plain_step_is_that_of_the_engine(model: str) -> None:
    """Contiguous weights of the module itself, without dropout; the losses are those of the engine."""
    o = architectures.options([*CPU, "--steps", "2"])
    case = Case(model, 32, 4)
    plain, ours = (WAYS[way](case, o, way) for way in ("plain", "ours"))
    assert isinstance(plain, Plain)
    assert type(plain.model).__module__.startswith(("torchvision", "fedchoir"))
    assert all(p.is_contiguous() for p in plain.model.parameters())
    assert plain.first() == pytest.approx(ours.first(), rel=1e-3)
    assert plain.block() > 0
    assert ours.block() > 0
