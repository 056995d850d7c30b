"""What a method costs, measured from its runs: the three tables of the FCCL+ paper that only count symbols."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from fedchoir.core.checkpoint import latest
from fedchoir.core.result import Result
from fedchoir.reporting.run_groups import Row, extra

WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Cost:
    """Bytes of one client in one round, messages of a round, models held by a client, seconds of a round by phase."""

    up: float
    down: float
    messages: float
    copies: float | None
    seconds: dict[str, float]


def cost_of(row: Row) -> Cost:
    """The mean cost over the seeds of a row."""
    runs = row.results
    share = [r.rounds * len(r.clients) * float(r.settings.get("fraction", 1.0)) for r in runs]
    copies = [c for r in runs if (c := copies_held(r)) is not None]
    return Cost(
        up=mean(r.bytes_up / s for r, s in zip(runs, share, strict=True)),
        down=mean(r.bytes_down / s for r, s in zip(runs, share, strict=True)),
        messages=mean(r.messages / r.rounds for r in runs),
        copies=mean(copies) if copies else None,
        seconds={name: mean(r.seconds.get(name, 0.0) / r.rounds for r in runs) for name in runs[0].seconds},
    )


def copies_held(result: Result) -> float | None:
    """How many models' worth of tensors a client keeps between rounds, its own included: 1 + memory / model.

    Read from the last checkpoint, which holds all that a client keeps: only the headers of its files are opened. Where
    clients begin with the global model, theirs is not in it, but has the size of the server's.
    """
    folder = extra(result, "folder")
    saved = None if folder is None else latest(Path(folder) / "checkpoint")
    if saved is None:
        return None
    server = [header(file) for file in saved.glob("server.safetensors")]
    shared = sum(size(t) for kept in server for name, t in kept.items() if name.startswith("weights/"))
    files = sorted(saved.glob("client-*.safetensors"))
    shares = [] if files or not shared else [1.0]
    for file in files:
        sizes = {"model": 0, "memory": 0, "parts": 0}
        for name, tensor in header(file).items():
            kind = name.partition("/")[0]
            if kind in sizes:
                sizes[kind] += size(tensor)
        if model := sizes["model"] or shared:
            shares.append(1 + (sizes["memory"] + sizes["parts"]) / model)
    return mean(shares) if shares else None


def size(tensor: dict[str, Any]) -> int:
    """Bytes of a tensor in a header."""
    return int(prod(tensor["shape"]) * WIDTH[tensor["dtype"]])


def header(file: Path) -> dict[str, Any]:
    """Names, dtypes and shapes of a safetensors file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        read: dict[str, Any] = json.loads(opened.read(length))
    return {name: tensor for name, tensor in read.items() if name != "__metadata__"}
