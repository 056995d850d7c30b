"""What trackers on a server have in common: one tracked run for one run folder, and a run that goes on without them."""

import importlib
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer
from fedchoir.experiments.tracking.scalars import scalars
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write_json

PROJECT = "fedchoir"


class Tracker(Observer):
    """Sends the numbers of each round once. ``DIR/tracking.json`` keeps the tracked run and the last round that was
    sent, so that a resumed run continues both. A subclass opens the tracked run, sends to it and closes it."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._path: Path | None = None
        self._clients: list[str] = []
        self._record: dict[str, Any] = {}
        self._open = False

    def library(self) -> ModuleType:
        try:
            return importlib.import_module(self.name)
        except ModuleNotFoundError as error:
            if error.name != self.name:
                raise
            raise UsageError(f"{self.name} is not installed: pip install 'fedchoir[{self.name}]'") from None

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._path = plan.out / "tracking.json"
        self._clients = [client.name for client in spec.clients]
        self._record = dict(_read(self._path).get(self.name) or {})
        try:
            self._record["run"] = self.open(plan, self._record.get("run"))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"--track {self.name} is not possible: {_first_line(error)}") from error
        self._open = True
        for event in done:  # what a killed run had not sent
            self.round(event)

    def round(self, event: Event) -> None:
        if not self._open or event["round"] <= self._record.get("sent", -2):
            return
        try:
            self.send(event["round"], dict(scalars(event, self._clients)))
        except Exception as error:  # a server that is down must not end the run
            warnings.warn(
                f"{self.name} gets no numbers from round {event['round']} on: {_first_line(error)}", stacklevel=2
            )
            self._open = False
            return
        self._record["sent"] = event["round"]
        assert self._path is not None
        atomic_write_json(self._path, {**_read(self._path), self.name: self._record})

    def ended(self) -> None:
        if self._open:
            self._open = False
            self.close(finished=sys.exc_info()[0] is None)

    def open(self, plan: Plan, run: str | None) -> str:
        """Begin or, given the identity of a run, continue a tracked run; returns its identity."""
        raise NotImplementedError

    def send(self, round_: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def close(self, finished: bool) -> None:
        raise NotImplementedError


def description(plan: Plan) -> dict[str, Any]:
    """What describes a tracked run. Paths are cut to their last name, so that no folder of this machine leaves."""
    experiment = plan.experiment
    facts = {
        "method": experiment.method, "profile": experiment.profile, "scenario": experiment.scenario,
        "public": plan.public, "models": list(plan.models), "rounds": plan.rounds, "seed": experiment.seed,
        "precision": experiment.precision, **plan.params.model_dump(mode="json"),
    }  # fmt: skip
    return {name: _without_folders(value) for name, value in facts.items() if value is not None}


def _without_folders(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
