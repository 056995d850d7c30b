"""The measured cost of a table row: bytes, messages, models held and seconds (the FCCL+ paper only counts symbols)."""

from math import prod
from pathlib import Path
from statistics import mean

from safetensors import SafetensorError, safe_open

from fedchoir.core.checkpoint import latest
from fedchoir.core.result import Result
from fedchoir.reporting.run_groups import Row
from fedchoir.reporting.store import extra
from fedchoir.utils.errors import UsageError


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
