"""The ways of making training steps, of which a CPU can run some, give the same losses; a failure ends one way only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import architectures
from architecture_ways import WAYS, Case, Plain

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
