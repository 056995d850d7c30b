"""Results of runs that were never run: the settings are real, the accuracies made up."""

from __future__ import annotations

from typing import Any

from fedchoir.core.result import Result
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.config import Experiment, make_plan


def a_run(
    method: str,
    scenario: str = "digits",
    models: tuple[str, ...] | None = None,
    *,
    intra: float = 60.0,
    inter: float = 40.0,
    beside: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """The result that a run with these values would leave; clients lie 1 apart around the averages given.

    ``beside`` is what `find_results` would add, and may replace any field.
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
    return Result(**{**values, **(beside or {})})
