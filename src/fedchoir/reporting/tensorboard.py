"""Writes the curves of a run as TensorBoard events under ``DIR/tensorboard``."""

from itertools import islice
from typing import Any

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metric_summary import headline
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer

MAX_CLIENTS = 50  # clients with their own curves; writing thousands takes time


class TensorBoard(Observer):
    """Writes accuracies, losses, bytes and seconds of every round."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._names: list[str] = []

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an interrupted run wrote after its last checkpoint
        self._writer = SummaryWriter(str(plan.out / "tensorboard"), purge_step=len(done) if done else None)
        self._names = [client.name for client in spec.clients]

    def round(self, event: Event) -> None:
        step = event["round"]
        for name in ("intra_avg", "inter_avg"):
            if event[name] is not None:
                self._writer.add_scalar(f"accuracy/{name}", event[name], step)
        if "headline" in event:
            metric, *means = headline(event)
            for name, value in zip(("intra_avg", "inter_avg"), means, strict=True):
                if value is not None:
                    self._writer.add_scalar(f"{metric}/{name}", value, step)
        for client, row in zip(self._names[:MAX_CLIENTS], event["accuracy"] or [], strict=False):
            if row:
                self._writer.add_scalar(f"accuracy of {client}/mean over tests", sum(row) / len(row), step)
        for client, losses in islice(event["losses"].items(), MAX_CLIENTS):
            for phase, value in losses.items():
                self._writer.add_scalar(f"{phase}/{client}", value, step)
        for name in ("bytes_up", "bytes_down", "messages"):
            self._writer.add_scalar(f"cost/{name}", event[name], step)
        for phase, value in event["seconds"].items():
            self._writer.add_scalar(f"seconds/{phase}", value, step)
        self._writer.flush()

    def ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
