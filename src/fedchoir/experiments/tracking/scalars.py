"""The numbers of a round by name, as every tracker shows them."""

from collections.abc import Iterator, Sequence
from itertools import islice

from fedchoir.core.metric_summary import headline
from fedchoir.core.result import Event

MAX_CLIENTS = 50  # clients with their own curves; writing thousands takes time


def scalars(event: Event, clients: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Accuracies, losses, bytes and seconds of a round."""
    for name in ("intra_avg", "inter_avg"):
        if event[name] is not None:
            yield f"accuracy/{name}", event[name]
    if "headline" in event:
        metric, *means = headline(event)
        for name, value in zip(("intra_avg", "inter_avg"), means, strict=True):
            if value is not None:
                yield f"{metric}/{name}", value
    for client, row in zip(clients[:MAX_CLIENTS], event["accuracy"] or [], strict=False):
        if row:
            yield f"accuracy of {client}/mean over tests", sum(row) / len(row)
    for client, losses in islice(event["losses"].items(), MAX_CLIENTS):
        for phase, value in losses.items():
            yield f"{phase}/{client}", value
    for name in ("bytes_up", "bytes_down", "messages"):
        yield f"cost/{name}", event[name]
    for phase, value in event["seconds"].items():
        yield f"seconds/{phase}", value
