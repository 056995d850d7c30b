"""The server's log lines."""

from __future__ import annotations

from collections.abc import Callable

from fedchoir import Experiment, run
from fedchoir.deploy.log import LogObserver


def test_one_line_per_round_and_one_for_every_client_that_was_left_out(small: Callable[..., Experiment]) -> None:
    lines: list[str] = []
    settings = {"attack": "nan", "attackers": 1, "dp_noise": 1.0}
    run(small("fedmd", rounds=2, settings=settings), observers=[LogObserver(lines.append)])
    assert lines[0].startswith("fedmd: 2 rounds with green (simple_cnn@4), ")
    for number in (1, 2):
        (accuracy,) = (line for line in lines if line.startswith(f"round {number} of 2: accuracy "))
        assert "B up" in accuracy
        assert "B down" in accuracy
        assert any(line.startswith(f"round {number}: ε for δ = 1e-05: green ") for line in lines)
        assert any(line.startswith(f"round {number}: white was left out of share: ") for line in lines)


def test_a_resumed_run_is_announced(small: Callable[..., Experiment]) -> None:
    experiment = small("fedmd", rounds=1)
    run(experiment)
    lines: list[str] = []
    run(experiment, resume=True, observers=[LogObserver(lines.append)])
    assert lines[0].endswith("resumed after round 1")
