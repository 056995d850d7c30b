"""The value of ``--compress``: a chain of stages for each direction.

int8+zstd                        both directions
up=topk:0.05+fp16+zstd           only what clients send
up=int8+zstd,down=fp16           one chain each
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fedchoir.utils.errors import UsageError

Rounding = Literal["fp16", "int8"]
FORM = (
    "[topk:SHARE or lowrank:RANK]+[fp16 or int8]+[zstd], at least one of them and in this order, such as int8+zstd; "
    "up=CHAIN or down=CHAIN for one direction"
)


@dataclass(frozen=True)
class Chain:
    """The stages of one direction: what is left out, how numbers are rounded, and whether zstd packs the rest."""

    topk: float | None = None
    lowrank: int | None = None
    rounding: Rounding | None = None
    zstd: bool = False

    def __str__(self) -> str:
        select = [f"topk:{self.topk!r}"] if self.topk else [f"lowrank:{self.lowrank}"] if self.lowrank else []
        return "+".join([*select, *([self.rounding] if self.rounding else []), *(["zstd"] if self.zstd else [])])


@dataclass(frozen=True)
class Compression:
    """The chains of both directions; None where payloads travel as they are."""

    up: Chain | None = None
    down: Chain | None = None


@lru_cache
def parse(text: str) -> Compression:
    """Read the value of ``--compress``; empty: no compression.

    >>> parse("topk:0.05+int8+zstd").up
    Chain(topk=0.05, lowrank=None, rounding='int8', zstd=True)
    >>> str(parse("down=fp16").down), parse("down=fp16").up
    ('fp16', None)
    """
    chains: dict[str, Chain] = {}
    for part in filter(None, text.split(",")):
        direction, equals, stages = part.strip().rpartition("=")
        for name in (direction,) if equals else ("up", "down"):
            if name not in ("up", "down") or name in chains:
                raise _wrong(text)
            chains[name] = _chain(stages, text)
    return Compression(**chains)


def _chain(stages: str, text: str) -> Chain:
    found: dict[str, object] = {}
    order = -1
    for stage in stages.split("+"):
        name, _, value = stage.strip().partition(":")
        place = {"topk": 0, "lowrank": 0, "fp16": 1, "int8": 1, "zstd": 2}.get(name, -1)
        if place <= order or bool(value) != (place == 0):
            raise _wrong(text)
        order = place
        found |= _values(name, value, text)
    return Chain(**found)  # type: ignore[arg-type]


def _values(name: str, value: str, text: str) -> dict[str, object]:
    try:
        if name == "topk" and 0 < float(value) < 1:
            return {"topk": float(value)}
        if name == "lowrank" and 1 <= int(value) <= 10_000:
            return {"lowrank": int(value)}
    except ValueError:
        raise _wrong(text) from None
    if name in ("topk", "lowrank"):
        right = "a share between 0 and 1" if name == "topk" else "a rank of at least 1"
        raise UsageError(f"compress = {text!r} is not possible: {name} needs {right}, such as {_EXAMPLES[name]}")
    return {"zstd": True} if name == "zstd" else {"rounding": name}


_EXAMPLES = {"topk": "topk:0.1", "lowrank": "lowrank:8"}


def _wrong(text: str) -> UsageError:
    return UsageError(f"compress = {text!r} is not possible: it should be {FORM}")
