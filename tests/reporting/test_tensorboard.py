from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.helpers import events

from fedchoir import Experiment, run
from fedchoir.reporting.tensorboard import TensorBoard


def scalars(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_every_round_is_written(small: Callable[..., Experiment]) -> None:
    experiment = small("fccl+", rounds=2)
    run(experiment, observers=[TensorBoard()])
    written = scalars(experiment.out / "tensorboard")
    inter = [point.value for point in written.Scalars("accuracy/inter_avg")]
    assert inter == pytest.approx([event["inter_avg"] for event in events(experiment)], rel=1e-5)
    tags = set(written.Tags()["scalars"])
    assert {"local_loss/green", "cost/bytes_up", "seconds/total", "accuracy of red/mean over tests"} <= tags
