"""Results and run folders of runs that never took place: settings are real, accuracies are invented."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import tomli_w

from fedchoir.core.result import Result
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.config import Experiment, make_plan

CLIENTS = (
    ("mnist", "resnet10", 150),
    ("usps", "resnet12", 80),
    ("svhn", "efficientnet_b0", 5000),
    ("syn", "mobilenet_v2", 1800),
)
METHODS = ("solo", "fedmd", "feddf", "rhfl", "fccl", "fccl+", "fbcl")


def write_run(
    folder: Path,
    method: str,
    seed: int,
    *,
    rounds: int = 40,
    done: int | None = None,
    scenario: str = "digits",
    public: str = "cifar100",
    **settings: Any,
) -> Path:
    """Write one run folder; with ``done`` below ``rounds`` the run is unfinished and has no result."""
    draw = random.Random(f"{method}{seed}")
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _, _ in CLIENTS]
    strength = METHODS.index(method) * 3 if method in METHODS else 0
    done = rounds if done is None else done
    events = [event(draw, r, names, strength) for r in range(done)]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    toml = {"method": method, "scenario": scenario, "public": public, "seed": seed, "rounds": rounds}
    (folder / "experiment.toml").write_text(tomli_w.dumps(toml))
    clients = [{"name": n, "model": m, "train": t, "test": 500, "domain": n} for n, m, t in CLIENTS]
    task = {
        "method": method, "profile": "fixed", "scenario": scenario, "public": public, "seed": seed,
        "settings": settings, "precision": "fp32", "rounds": rounds, "tests": names, "clients": clients,
        "classes": list("0123456789"),
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    if done == rounds:
        (folder / "result.json").write_text(json.dumps(result(events, method, seed, scenario, public, settings)))
    return folder


def event(draw: random.Random, r: int, names: list[str], strength: int) -> dict[str, Any]:
    grown = 1 - math.exp(-(r + 1) / 8)
    matrix = [
        [
            round(min(99, (62 + strength / 2 if i == j else 18 + strength) * grown + draw.gauss(8, 1.5)), 4)
            for j in range(len(names))
        ]
        for i in range(len(names))
    ]
    intra = [row[i] for i, row in enumerate(matrix)]
    inter = [(sum(row) - row[i]) / (len(row) - 1) for i, row in enumerate(matrix)]
    left = [{"client": "usps", "exchange": "share", "why": "no answer in time"}] if r == 7 and strength == 6 else []
    return {
        "round": r, "clients": names, "accuracy": matrix, "intra_avg": sum(intra) / 4, "inter_avg": sum(inter) / 4,
        "losses": {n: {"public_loss": 3 / (r + 2), "local_loss": 2.3 * math.exp(-r / 9)} for n in names},
        "left_out": left, "bytes_up": 800_000 * (strength > 0) * 4, "bytes_down": 800_000 * (strength > 0) * 4,
        "messages": 44 if strength else 4,
        "seconds": {"total": 4 + draw.random(), "public": 1.0 * (strength > 0), "local": 2.5, "evaluate": 0.4},
    }  # fmt: skip


def result(
    events: list[dict[str, Any]], method: str, seed: int, scenario: str, public: str, settings: dict[str, Any]
) -> dict[str, Any]:
    last = [e["accuracy"] for e in events[-3:]]
    matrix = [[sum(m[i][j] for m in last) / len(last) for j in range(4)] for i in range(4)]
    intra = [row[i] for i, row in enumerate(matrix)]
    inter = [(sum(row) - row[i]) / 3 for i, row in enumerate(matrix)]
    return {
        "method": method, "profile": "fixed",
        "scenario": scenario, "public": public, "seed": seed, "rounds": len(events),
        "clients": [{"name": n, "model": m, "train": t, "test": 500} for n, m, t in CLIENTS],
        "tests": [n for n, _, _ in CLIENTS], "accuracy": matrix, "intra": intra, "inter": inter,
        "intra_avg": sum(intra) / 4, "inter_avg": sum(inter) / 4,
        **{k: sum(e[k] for e in events) for k in ("bytes_up", "bytes_down", "messages")},
        "seconds": {k: sum(e["seconds"][k] for e in events) for k in events[0]["seconds"]},
        "settings": {"local_epochs": 20, "public_lr": 0.001, "omega": 3.0 if method == "fccl+" else None, **settings},
        "notes": [], "device": "cpu", "precision": "fp32",
        "versions": {"fedchoir": "0.1", "python": "3.12", "torch": "2.11.0"},
    }  # fmt: skip


def write_comparison(root: Path, seeds: int = 3, rounds: int = 40) -> Path:
    """Write the sweep of seven methods with several seeds, as ``fedchoir reproduce fccl+/table8`` does."""
    names = {f"{method}-seed{seed}": (method, seed) for method in METHODS for seed in range(seeds)}
    for name, (method, seed) in names.items():
        write_run(root / name, method, seed, rounds=rounds)
    labels = {name: method for name, (method, _) in names.items()}
    (root / "sweep.json").write_text(json.dumps({"table": "fccl+/table8", "title": "", "runs": labels}))
    return root


def fake_result(
    method: str,
    scenario: str = "digits",
    models: tuple[str, ...] | None = None,
    *,
    intra: float = 60.0,
    inter: float = 40.0,
    extras: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """The result of a run with these values; client accuracies are 1 apart around the averages given.

    ``extras`` are the fields that the store adds, and may replace any field.
    """
    plan = make_plan(Experiment(method=method, scenario=scenario, models=models, **more))
    known = SCENARIOS[scenario]
    count = plan.params.clients or len(known.domains)
    names = known.domains if known.kind == "domain-shift" and count == len(known.domains) else range(count)
    clients = [
        {"name": str(name), "model": plan.models[k % len(plan.models)], "train": 9, "test": 9}
        for k, name in enumerate(names)
    ]
    steps = [k - (count - 1) / 2 for k in range(count)]
    shift = known.kind == "domain-shift"
    values: dict[str, Any] = {
        "method": method, "profile": plan.experiment.profile, "scenario": scenario, "public": plan.public,
        "seed": plan.experiment.seed, "rounds": plan.rounds, "clients": clients, "tests": list(known.domains),
        "accuracy": [[50.0]] * count, "intra": [intra + s for s in steps], "intra_avg": intra,
        "inter": [inter + s for s in steps] if shift else [], "inter_avg": inter if shift else None,
        "bytes_up": 8000 * plan.rounds, "bytes_down": 4000 * plan.rounds, "messages": 4 * plan.rounds,
        "seconds": {"total": 6.0, "public": 1.0, "local": 3.0, "evaluate": 2.0},
        "settings": plan.params.model_dump(mode="json"), "notes": [], "versions": {}, "device": "cpu",
        "precision": "fp32",
    }  # fmt: skip
    return Result(**{**values, **(extras or {})})
