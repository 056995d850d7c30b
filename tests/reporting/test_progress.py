from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from fedchoir import Experiment, run
from fedchoir.reporting.progress import LiveProgress


def watch(experiment: Experiment, *, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=terminal)
    result = run(experiment, observers=[LiveProgress(console)])
    assert f"{result.intra_avg:.1f}"
    return out.getvalue()


def test_the_bar_shows_method_rounds_and_accuracy(small: Callable[..., Experiment]) -> None:
    text = watch(small("solo", rounds=2), terminal=True)
    for word in ("solo", "2/2", "intra", "inter"):
        assert word in text


def test_without_a_terminal_nothing_is_printed(small: Callable[..., Experiment]) -> None:
    assert watch(small("solo", rounds=1), terminal=False) == ""
