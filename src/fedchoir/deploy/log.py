"""The server's log: one line per round, and one for every client that was left out."""

import time
from collections.abc import Callable

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metric_summary import headline
from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer
from fedchoir.utils.sizes import readable_bytes

Log = Callable[[str], None]


class LogObserver(Observer):
    """An observer of the run that writes plain lines, for a terminal or a journal."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._start = time.monotonic()
        self._rounds = 0

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._rounds = spec.rounds
        names = ", ".join(f"{client.name} ({client.model})" for client in spec.clients)
        resumed = f", resumed after round {len(done)}" if done else ""
        self._log(f"{plan.experiment.method}: {spec.rounds} rounds with {names}{resumed}")

    def round(self, event: Event) -> None:
        name, average, _ = headline(event)
        unknown = "not evaluated" if event["accuracy"] is None else "no accuracies reported"
        score = unknown if average is None else f"{METRICS[name].title} {average:.{METRICS[name].digits}f}"
        self._log(
            f"round {event['round'] + 1} of {self._rounds}: {score}, {readable_bytes(event['bytes_up'])} up, "
            f"{readable_bytes(event['bytes_down'])} down, {event['messages']} messages, "
            f"{time.monotonic() - self._start:.0f} s since the start"
        )
        if "privacy" in event:
            costs = ", ".join(f"{name} {cost:.2f}" for name, cost in event["privacy"]["epsilon"].items())
            self._log(f"round {event['round'] + 1}: ε for δ = {event['privacy']['delta']:g}: {costs}")
        for out in event["left_out"]:
            where = f" of {out['exchange']}" if out["exchange"] else ""
            self._log(f"round {event['round'] + 1}: {out['client']} was left out{where}: {out['why']}")
