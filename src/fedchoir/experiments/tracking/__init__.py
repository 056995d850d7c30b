"""Curves of a run for TensorBoard, Weights & Biases and MLflow, from its events and nothing else."""

from collections.abc import Iterable

from fedchoir.experiments.run import Observer
from fedchoir.experiments.tracking.base import Tracker
from fedchoir.experiments.tracking.mlflow import MLflow
from fedchoir.experiments.tracking.tensorboard import TensorBoard
from fedchoir.experiments.tracking.wandb import WeightsAndBiases
from fedchoir.utils.errors import UsageError

TRACKERS: dict[str, type[Observer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def make_trackers(names: Iterable[str]) -> list[Observer]:
    """The trackers with these names, each once. A missing library is one line with the command that installs it."""
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in TRACKERS]:
        raise UsageError(f"--track {unknown[0]!r} is not known; it should be one of {', '.join(TRACKERS)}")
    made = [TRACKERS[name]() for name in names]
    for tracker in made:
        if isinstance(tracker, Tracker):
            tracker.library()
    return made
