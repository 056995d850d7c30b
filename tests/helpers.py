"""Helpers that tests of several packages share: what a run wrote, and whether two runs computed the same."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedchoir import Experiment
from fedchoir.core import checkpoint

State = Mapping[str, Tensor]
COSTS = ("seconds",)  # event fields that differ between two runs of one experiment


def run_folder(run: Experiment | Path) -> Path:
    folder = run.out if isinstance(run, Experiment) else run
    assert folder is not None
    return folder


def events(run: Experiment | Path) -> list[dict[str, Any]]:
    """One event per round."""
    return [json.loads(line) for line in (run_folder(run) / "events.jsonl").read_text().splitlines()]


def numbers(
    run: Experiment | Path, *, without: Collection[str] = COSTS, only: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The events without the time that they took; with ``only``, these fields alone."""
    return [
        {key: value for key, value in event.items() if (key in only if only else key not in without)}
        for event in events(run)
    ]


def states(run: Experiment | Path) -> dict[str, dict[str, Tensor]]:
    """The last checkpoint: the tensors of the server and of every client by file name."""
    last = checkpoint.latest(run_folder(run) / "checkpoint")
    assert last is not None
    return {file.stem: checkpoint.load(last, file.stem) for file in sorted(last.glob("*.safetensors"))}


def equal(one: State | Sequence[State], two: State | Sequence[State]) -> bool:
    """Whether two state dicts, or two lists of them, are the same bit by bit."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(torch.equal(t, two[name]) for name, t in one.items())
    return len(one) == len(two) and all(equal(a, b) for a, b in zip(one, two, strict=True))  # type: ignore[arg-type]


def assert_same(one: Experiment | Path, two: Experiment | Path) -> None:
    """Assert that two runs have the same events and the same checkpoint, bit by bit."""
    assert numbers(one) == numbers(two)
    first, second = states(one), states(two)
    assert first.keys() == second.keys()
    for name, state in first.items():
        assert equal(state, second[name]), name


def assert_uniform(words: NDArray[np.uint32]) -> None:
    """Assert that 32-bit words look uniformly distributed, as masked numbers must."""
    assert stats.chisquare(np.bincount(words >> 24, minlength=256)).pvalue > 1e-4
    for bit in range(32):
        ones = int(((words >> bit) & 1).sum())
        assert abs(ones - words.size / 2) < 5 * np.sqrt(words.size) / 2


class Stop(Exception):
    """Stands for a process that was killed."""


class StopAfter:
    """An observer that ends the run right after a round, as a crash would."""

    def __init__(self, last: int) -> None:
        self.last = last

    def loading(self, *_: Any) -> None: ...

    def began(self, *_: Any) -> None: ...

    def client(self, *_: Any) -> None: ...

    def ended(self) -> None: ...

    def round(self, event: dict[str, Any]) -> None:
        if event["round"] == self.last:
            raise Stop
