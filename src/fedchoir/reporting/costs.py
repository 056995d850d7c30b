"""The measured cost of a table row (the FCCL+ paper only counts symbols): of a round bytes, messages, models held and
seconds, and the budget of a client in the whole run."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from statistics import mean

from safetensors import SafetensorError, safe_open

from fedchoir.core.checkpoint import latest
from fedchoir.core.result import ClientBudget, Result
from fedchoir.reporting.render import NONE, Cell, Sheet
from fedchoir.reporting.run_groups import Row
from fedchoir.reporting.store import extra
from fedchoir.utils.errors import UsageError
from fedchoir.utils.sizes import readable_bytes


def cost_of(row: Row) -> dict[str, float | None]:
    """Mean cost over seeds: bytes per client and round, messages and seconds per round, models held by a client."""
    runs = row.results
    share = [r.rounds * len(r.clients) * float(r.settings.get("fraction", 1.0)) for r in runs]
    held = [count for r in runs if (count := models_held(r)) is not None]
    return {
        "bytes_up": mean(r.bytes_up / s for r, s in zip(runs, share, strict=True)),
        "bytes_down": mean(r.bytes_down / s for r, s in zip(runs, share, strict=True)),
        "messages": mean(r.messages / r.rounds for r in runs),
        "models_held": mean(held) if held else None,
        **{f"seconds_{name}": mean(r.seconds.get(name, 0.0) / r.rounds for r in runs) for name in runs[0].seconds},
    }


PHASES = ("local", "public")
BUDGET = {
    "parameters": "parameters", "module_parameters": "modules", "steps_local": "local steps",
    "samples_local": "local samples", "steps_public": "public steps", "samples_public": "public samples",
}  # fmt: skip
BUDGET_NOTES = (
    "mean over clients; parameters: of the client's own model; modules: of the auxiliary modules that its method adds",
    "steps: of the optimiser; samples: in these steps, once per pass; forward passes without a step are not counted",
)


def budget_of(row: Row) -> dict[str, float | None]:
    """What the whole run needs at one client, mean over clients and seeds: bytes, parameters of its model and of its
    auxiliary modules, optimiser steps and samples of each phase. None where a run did not count it."""
    runs = row.results
    clients = [budget for r in runs for budget in r.budget.values()]
    sized = clients if all(r.budget for r in runs) else []
    counts = {f"{kind}_{phase}": _counts(sized, kind, phase) for kind in ("steps", "samples") for phase in PHASES}
    return {
        "run_bytes_up": mean(r.bytes_up / len(r.clients) for r in runs),
        "run_bytes_down": mean(r.bytes_down / len(r.clients) for r in runs),
        "parameters": mean(b.parameters for b in sized) if sized else None,
        "module_parameters": mean(b.modules for b in sized) if sized else None,
        **counts,
    }


def _counts(clients: Sequence[ClientBudget], kind: str, phase: str) -> float | None:
    found: list[dict[str, int] | None] = [getattr(client, kind) for client in clients]
    known = [counts.get(phase, 0) for counts in found if counts is not None]
    return mean(known) if known and len(known) == len(found) else None


def budget_sheet(group: str, group_rows: Sequence[Row]) -> Sheet:
    """What the whole run needs at one client: bytes, parameters, and the steps and samples of its training."""
    lines = []
    for row in group_rows:
        budget = budget_of(row)
        traffic = (readable_bytes(budget[f"run_bytes_{way}"] or 0) for way in ("up", "down"))
        lines.append(tuple(map(Cell, (row.label, *traffic, *(_count(budget[name]) for name in BUDGET)))))
    header = ("method", "up", "down", *BUDGET.values())
    return Sheet(f"{group} · budget of one client, whole run", header, tuple(lines), BUDGET_NOTES)


def _count(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def models_held(result: Result) -> float | None:
    """How many models' worth of tensors a client stores between rounds, its own model included.

    Read from the headers of the last checkpoint; None if there is none or it is damaged. Clients that start each round
    from the global model have no model of their own there; theirs has the size of the server's.
    """
    folder = extra(result, "folder")
    try:
        saved = latest(Path(folder) / "checkpoint") if folder else None
        files = {name: sorted(saved.glob(f"{name}.safetensors")) if saved else [] for name in ("server", "client-*")}
        server, clients = (list(map(_sizes, found)) for found in files.values())
    except (UsageError, OSError, SafetensorError):
        return None
    shared = sum(sizes.get("weights", 0) for sizes in server)
    counts = [1.0] if shared and not clients else []
    for sizes in clients:
        if model := sizes.get("model") or shared:
            counts.append(1 + (sizes.get("memory", 0) + sizes.get("modules", 0)) / model)
    return mean(counts) if counts else None


def _sizes(file: Path) -> dict[str, int]:
    """Bytes of a safetensors file by the first part of the tensors' names; opens only its header."""
    sizes: dict[str, int] = {}
    with safe_open(file, framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            tensor = tensors.get_slice(name)
            bits = int("".join(filter(str.isdigit, tensor.get_dtype())) or 8)  # F32, BF16, I64, U8, BOOL
            kind = name.partition("/")[0]
            sizes[kind] = sizes.get(kind, 0) + prod(tensor.get_shape()) * bits // 8
    return sizes
