"""A site's audit log, ``state/audit.jsonl``: what was asked, what left, what it cost in ε, and what was refused.

Lines are chained by hashes, and a line is on disk before the reply that it describes leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedchoir.engines.headers import MessageError
from fedchoir.payload import Payload, PayloadError
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError
from fedchoir.utils.errors import UsageError
from fedchoir.utils.hash_chain import BrokenChainError, HashChain
from fedchoir.utils.sizes import readable_bytes
from fedchoir.utils.text import printable

LONGEST = 1000  # characters of a line: a hostile server must not fill the disk with its own text
SAFE = (MessageError, PayloadError, SecureAggregationError)  # their text names no file and no data of the site


class AuditLog:
    """The log of one site. ``show`` gets every line as well, for the console."""

    def __init__(self, path: Path, show: Callable[[str], None] = lambda line: None) -> None:
        self._chain, self._show = HashChain(path), show

    def record(self, kind: str, text: str, **facts: Any) -> None:
        """Write one line. ``text`` is what happened in plain words; ``facts`` are the same as fields."""
        text = printable(text, LONGEST)
        self._chain.append(time=time.time(), kind=kind, text=text, **facts)
        self._show(text)

    def asked(self, index: int, names: Sequence[str], size: int, run: str) -> None:
        text = f"round {index + 1}: the server asks for {', '.join(names)} ({readable_bytes(size)} received)"
        self.record("asked", text, run=run, round=index, actions=list(names), bytes=size)

    def sent(self, index: int, payloads: Sequence[Payload], metrics: bool, masked: int, run: str, cost: str) -> None:
        """What leaves with a reply. ``masked``: the number of sites in the secure sum; 0 without one."""
        summary = summarise(payloads)
        sent = [describe(one) for one in summary] or ["no payload"]
        if travelling := sum(payload.wire.nbytes for payload in payloads if payload.wire is not None):
            sent.append(f"compressed to {readable_bytes(travelling)}")
        if masked:
            sent.append(f"masked: the server sees the sum over {masked} sites")
        sent.append("losses and accuracies" if metrics else "no losses or accuracies")
        text = f"round {index + 1}: sends {'; '.join(sent)}{cost}"
        self.record("sent", text, run=run, round=index, payloads=summary, metrics=metrics, masked=masked)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Record why a message was not carried out. What the server is told names no file and no data of the site."""
        try:
            yield
        except SAFE as error:
            why = printable(str(error))
            self.record("refused", why if why.startswith("refused") else f"refused: {why}")
            raise MessageError(why) from None
        except Exception as error:
            self.record("failed", f"failed: {type(error).__name__}: {error}")
            why = f"{type(error).__name__} at this site; its operator finds the reason in its log"
            raise MessageError(why) from error


def summarise(payloads: Sequence[Payload]) -> list[dict[str, Any]]:
    """Name, size and statistics of everything in the payloads. A state dict counts as one entry."""
    groups: dict[str, list[torch.Tensor]] = {}
    for payload in payloads:
        for name, tensor in payload.items():
            groups.setdefault(name.partition("/")[0], []).append(tensor)
        for name, value in payload.scalars.items():
            groups.setdefault(name, []).append(torch.tensor(value, dtype=torch.float64))
    return [{"name": name, **_statistics(tensors)} for name, tensors in sorted(groups.items())]


def _statistics(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    numbers = sum(t.numel() for t in tensors)
    facts: dict[str, Any] = {
        "tensors": len(tensors), "shape": list(tensors[0].shape) if len(tensors) == 1 else None, "numbers": numbers,
        "bytes": sum(t.numel() * t.element_size() for t in tensors),
    }  # fmt: skip
    filled = [t.detach().float() for t in tensors if t.numel()]
    if filled:
        lowest, highest = zip(*(torch.aminmax(t) for t in filled), strict=True)
        facts["min"], facts["max"] = float(min(lowest)), float(max(highest))
        facts["mean"] = sum(float(t.sum(dtype=torch.float64)) for t in filled) / numbers
        facts["norm"] = math.sqrt(sum(float(torch.linalg.vector_norm(t)) ** 2 for t in filled))
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in facts.items()
    }


def describe(summary: Mapping[str, Any]) -> str:
    """One payload in words: ``logits 40×10 (1.6 KiB, from -3 to 4, mean 0.1, norm 25)``."""
    if summary["shape"] is None:
        size = f"{summary['tensors']} tensors with {summary['numbers']} numbers"
    else:
        size = "×".join(map(str, summary["shape"])) or "one number"
    numbers = {name: "not finite" if summary.get(name) is None else f"{summary[name]:.4g}" for name in
               ("min", "max", "mean", "norm")}  # fmt: skip
    return (
        f"{summary['name']} {size} ({readable_bytes(summary['bytes'])}, from {numbers['min']} to {numbers['max']}, "
        f"mean {numbers['mean']}, norm {numbers['norm']})"
    )


def read_audit(path: Path, last: int | None = None) -> list[dict[str, Any]]:
    """The lines of a log, the last ones if ``last`` is given. Raises `UsageError` if the log was changed."""
    try:
        lines = list(HashChain(path))
    except BrokenChainError as error:
        raise UsageError(f"{path}: {error}") from None
    return lines[-last:] if last else lines


def readable_lines(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line of text for each line of a log."""
    for line in lines:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(line["time"])))
        yield f"{when}  {printable(str(line['text']), LONGEST)}"
