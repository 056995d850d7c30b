"""Writes the curves of a run as TensorBoard events under ``DIR/tensorboard``."""

from typing import Any

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer
from fedchoir.experiments.tracking.scalars import scalars


class TensorBoard(Observer):
    """Writes accuracies, losses, bytes and seconds of every round."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._names: list[str] = []

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an interrupted run wrote after its last checkpoint
        folder = plan.out / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=len(done) if folder.exists() else None)
        self._names = [client.name for client in spec.clients]

    def round(self, event: Event) -> None:
        for name, value in scalars(event, self._names):
            self._writer.add_scalar(name, value, event["round"])
        self._writer.flush()

    def ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
