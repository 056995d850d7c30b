"""Intra- against inter-domain scores: which rows no other row beats in both, with FedAvg of one model as reference."""

import shlex
from collections.abc import Sequence
from typing import Any

from fedchoir.core.metrics import METRICS
from fedchoir.data.registry import SCENARIOS
from fedchoir.models.registry import SMALL_MODELS
from fedchoir.reporting.difference_tables import described, without_models
from fedchoir.reporting.run_groups import Row

REFERENCE = "fedavg"

Point = tuple[float, float]


def pareto(group_rows: Sequence[Row], table_rows: Sequence[Row]) -> dict[str, Any] | None:
    """For the report: a point per row, those on the front in order, and a note if the reference is missing; None
    without inter-domain scores. FedAvg rows that differ from the group only in their models are points, too."""
    group, setting = group_rows[0].group, without_models(group_rows[0].results[0])
    others = [row for row in table_rows if row.group != group and without_models(row.results[0]) == setting]
    shown = [row for row in (*group_rows, *filter(one_fedavg_model, others)) if row.metric == group_rows[0].metric]
    both = [(row, row.number("intra"), row.number("inter")) for row in shown]
    known = [(row, intra, inter) for row, intra, inter in both if intra is not None and inter is not None]
    if not known:
        return None
    position = {id(row): k for k, row in enumerate(group_rows)}
    points = [
        {
            "label": described(row, group), "row": position.get(id(row)),
            "intra": intra.mean, "intra_sd": intra.sd, "inter": inter.mean, "inter_sd": inter.sd,
            "seeds": len(row.results), "bytes": row.bytes_per_round,
        }
        for row, intra, inter in known
    ]  # fmt: skip
    best = front([(intra.mean, inter.mean) for _, intra, inter in known], group_rows[0].metric)
    missing = not any(one_fedavg_model(row) for row, *_ in known)
    return {"points": points, "front": best, "note": missing_note(group_rows[0]) if missing else ""}


def front(points: Sequence[Point], metric: str = "accuracy") -> list[int]:
    """The positions of the points that no other point beats: none is at least as good in both scores and better in one.
    In order of their intra-domain score.

    >>> front([(60.0, 40.0), (70.0, 30.0), (65.0, 20.0), (50.0, 45.0)])
    [3, 0, 1]
    """
    sign = 1 if METRICS[metric].larger_is_better else -1
    signed = [(sign * x, sign * y) for x, y in points]

    def beaten(p: Point) -> bool:
        return any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in signed)

    return sorted((k for k, p in enumerate(signed) if not beaten(p)), key=lambda k: points[k])


def one_fedavg_model(row: Row) -> bool:
    """Whether a row is the reference: FedAvg, where all clients have one model."""
    return row.method == REFERENCE and len({client["model"] for client in row.results[0].clients}) == 1


def missing_note(row: Row) -> str:
    """How to run the reference for the setting of a row."""
    result = row.results[0]
    known = SCENARIOS.get(result.scenario)
    model = SMALL_MODELS[known.modality] if known else "MODEL"
    command = f"fedchoir run {REFERENCE} --scenario {shlex.quote(result.scenario)} --models {model}"
    return f"reference row missing, one small FedAvg model: {command} --rounds {result.rounds}"
