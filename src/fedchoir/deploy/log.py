"""What the server says while it runs: one line a round, and a line for everyone who was left out."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan


class LogObserver:
    """Tells each round in plain lines, for a terminal and for a journal alike."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._start = time.monotonic()
        self._rounds = 0

    def began(self, plan: Plan, task: FederationSpec, done: list[Event]) -> None:
        self._rounds = task.rounds
        names = ", ".join(f"{card.name} ({card.model})" for card in task.clients)
        again = f", going on after round {len(done)}" if done else ""
        self._tell(f"{plan.experiment.method}: {task.rounds} rounds with {names}{again}")

    def client(self, name: str, phase: str) -> None: ...

    def round(self, event: Event) -> None:
        average = event["intra_avg"]
        score = "not evaluated" if average is None else f"accuracy {average:.2f}"
        self._tell(
            f"round {event['round'] + 1} of {self._rounds}: {score}, {event['bytes_up'] / 1e6:.2f} MB up, "
            f"{event['bytes_down'] / 1e6:.2f} MB down, {event['messages']} messages, "
            f"{time.monotonic() - self._start:.0f} s since the start"
        )
        if "privacy" in event:
            costs = ", ".join(f"{name} {cost:.2f}" for name, cost in event["privacy"]["epsilon"].items())
            self._tell(f"round {event['round'] + 1}: ε for δ = {event['privacy']['delta']:g}: {costs}")
        for out in event["left_out"]:
            where = f" of {out['exchange']}" if out["exchange"] else ""
            self._tell(f"round {event['round'] + 1}: {out['client']} was left out{where}: {out['why']}")

    def ended(self) -> None: ...
