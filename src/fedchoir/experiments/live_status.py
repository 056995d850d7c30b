"""``DIR/live.json``: which client is in which phase of a running experiment, read by the live page."""

import json
import time
from pathlib import Path

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer

INTERVAL = 0.5
"""Seconds between two writes."""


class LiveStatus(Observer):
    """Writes the current client and phase to ``live.json``, at most twice a second."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._written = 0.0

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._path = plan.out / "live.json"

    def client(self, name: str, phase: str) -> None:
        now = time.monotonic()
        if self._path is not None and now - self._written >= INTERVAL:
            self._written = now
            # not atomic: the reader ignores a file that is not valid JSON
            self._path.write_text(json.dumps({"client": name, "phase": phase}))

    def ended(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
