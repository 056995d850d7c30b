"""The result of a run, ``result.json``, and the events of its rounds, ``events.jsonl``."""

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from fedchoir.core.evaluation import last_rounds_mean
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metric_summary import (
    BestRound,
    ClientSummary,
    by_client,
    result_fields,
    summarise_clients,
    unseen,
)
from fedchoir.core.metrics import defined_mean
from fedchoir.utils.errors import UsageError
from fedchoir.version import __version__

Event = dict[str, Any]
"""One line of ``events.jsonl``."""


class ClientBudget(BaseModel):
    """What a client needs for a run. Steps and samples are None where they were not counted: on several devices, at
    real sites and under differential privacy.

    Attributes:
        parameters: of its own model.
        modules: parameters of the auxiliary modules that its method adds, whether they stay or are sent.
        steps: optimiser steps of the whole run by phase, ``public`` or ``local`` (with pretraining).
        samples: in these steps; a sample counts once per pass.
    """

    model_config = ConfigDict(frozen=True)

    parameters: int
    modules: int
    steps: dict[str, int] | None = None
    samples: dict[str, int] | None = None


class Result(BaseModel):
    """The outcome of a run. Accuracies are percent, the mean of the last three evaluated rounds. Where no client
    reports accuracies, their lists are empty and their means None."""

    model_config = ConfigDict(frozen=True, extra="allow")

    method: str
    profile: str
    scenario: str
    public: str | None
    seed: int
    rounds: int
    clients: list[dict[str, Any]]
    tests: list[str]
    accuracy: list[list[float]]
    intra: list[float]
    inter: list[float]
    intra_avg: float | None
    inter_avg: float | None
    own: list[float | None] = []  # under label skew: each client's accuracy on its own share of the tests
    unseen: dict[str, ClientSummary] = {}  # with held_out: that test set → accuracy over the clients
    metric: str = "accuracy"  # the headline
    metrics: dict[str, list[list[float | None]]] = {}  # name → clients × tests, as `accuracy`
    metrics_ci: dict[str, list[list[list[float] | None]]] = {}  # name → clients × tests → 95 % interval, last round
    metrics_summary: dict[str, dict[str, ClientSummary]] = {}  # name → intra, inter, own, unseen → over clients
    best: list[BestRound] = []  # with a validation share: each client's best round
    planned: int | None = None  # rounds; more than `rounds` if the run stopped early
    bytes_up: int
    bytes_down: int
    messages: int
    budget: dict[str, ClientBudget] = {}  # by client; empty for runs at real sites
    seconds: dict[str, float]
    settings: dict[str, Any]
    notes: list[str]
    versions: dict[str, str]
    device: str
    precision: str

    @property
    def unseen_avg(self) -> float | None:
        """The mean accuracy on the held-out domain; None where there is none."""
        return defined_mean([summary.mean for summary in self.unseen.values()])

    @model_serializer(mode="wrap")
    def _only_if_held_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """``unseen`` is written only if a domain is held out."""
        dumped: dict[str, Any] = handler(self)
        return dumped if dumped.get("unseen") else {name: v for name, v in dumped.items() if name != "unseen"}


def summarise(spec: FederationSpec, tests: Sequence[str], events: Sequence[Event], facts: dict[str, Any]) -> Result:
    """The result of the rounds so far."""
    matrices = [event["accuracy"] for event in events if event["accuracy"] is not None]
    accuracy = last_rounds_mean(matrices) if matrices else [[] for _ in spec.clients]
    everyone = spec
    spec, accuracy, facts = _evaluated_only(spec, accuracy, facts)
    intra, inter = split_rows(accuracy, spec, tests) if accuracy else ([], [])
    seconds = {key: sum(event["seconds"][key] for event in events) for key in events[-1]["seconds"]}
    return Result(
        **facts,
        rounds=len([event for event in events if event["round"] >= 0]),
        clients=[{"name": c.name, "model": c.model, "train": c.train, "test": c.test} for c in spec.clients],
        tests=list(tests),
        accuracy=accuracy,
        intra=intra,
        inter=inter,
        intra_avg=sum(intra) / len(intra) if intra else None,
        inter_avg=sum(inter) / len(inter) if inter else None,
        own=own_mean(events),
        unseen=_unseen(accuracy, spec, tests),
        **result_fields(everyone, spec, tests, events),
        planned=spec.rounds,
        bytes_up=sum(event["bytes_up"] for event in events),
        bytes_down=sum(event["bytes_down"] for event in events),
        messages=sum(event["messages"] for event in events),
        seconds=seconds,
        versions=versions(),
    )


def _evaluated_only(
    spec: FederationSpec, accuracy: list[list[float]], facts: dict[str, Any]
) -> tuple[FederationSpec, list[list[float]], dict[str, Any]]:
    """Leave out, with a note, clients that never reported an accuracy; if none did, keep them all."""
    missing = [info.name for info, row in zip(spec.clients, accuracy, strict=True) if not row]
    if not missing:
        return spec, accuracy, facts
    if len(missing) == len(accuracy):
        return spec, [], {**facts, "notes": [*facts["notes"], "no client reports accuracies"]}
    evaluated = tuple(info for info, row in zip(spec.clients, accuracy, strict=True) if row)
    notes = [
        *facts["notes"],
        *(f"{name}: never evaluated in the last rounds, so not in this result" for name in missing),
    ]
    return replace(spec, clients=evaluated), [row for row in accuracy if row], {**facts, "notes": notes}


def split_rows(
    accuracy: Sequence[Sequence[float] | None], spec: FederationSpec, tests: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Each client's intra- and inter-domain accuracy; the second is empty under label skew (one domain)."""
    intra, inter = by_client(accuracy, spec, tests)
    return [value for value in intra if value is not None], [value for value in inter if value is not None]


def _unseen(
    accuracy: Sequence[Sequence[float]], spec: FederationSpec, tests: Sequence[str]
) -> dict[str, ClientSummary]:
    """The accuracy on the held-out domain over the clients; empty where there is none."""
    if spec.held_out is None or not (values := unseen(accuracy, spec, tests)):
        return {}
    return {spec.held_out: summarise_clients(values, [info.name for info in spec.clients], "accuracy")}


def own_mean(events: Sequence[Event], last: int = 3) -> list[float | None]:
    """Each client's accuracy on its own share of the tests, the mean of the last rounds that have one."""
    columns = zip(*[event["own"] for event in events if "own" in event][-last:], strict=True)
    evaluated = [[value for value in column if value is not None] for column in columns]
    return [sum(values) / len(values) if values else None for values in evaluated]


def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    found = {"fedchoir": __version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "timm", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def load_result(folder: Path) -> Result:
    """The result of a finished run."""
    path = folder / "result.json" if folder.is_dir() else folder
    try:
        return Result(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"there is no {path}: is the run finished? (--resume continues it)") from None
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a result: {str(error).splitlines()[0]}") from None


def read_events(path: Path) -> list[Event]:
    """The lines of an event file up to the first that was cut off or damaged."""
    events = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return events
