"""What the live page knows: every run below a folder, read again only where a file has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedchoir.core.result import Event
from fedchoir.reporting.progress import PHASES
from fedchoir.reporting.run_data import Run, matrices_each, read_json, read_lines, read_run, run_data

QUIET_AFTER = 120.0
"""Seconds without a sign of life after which a run may have stopped, if its rounds are short."""
FILES = ("events.jsonl", "result.json", "task.json", "experiment.toml")
Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Known:
    """A folder as it was when last read."""

    signature: Signature
    summary: dict[str, Any]
    run: Run | None


class Watch:
    """The runs below a root. Runs are found, never opened by a name that someone sends."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root.resolve()
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._lock = threading.RLock()  # requests come in threads

    def folders(self) -> dict[str, Path]:
        """Name → folder of every run; what a link leads to outside the root is left out."""
        files = [file for name in ("experiment.toml", *FILES[:2]) for file in self.root.rglob(name)]
        inside = sorted({file.parent for file in files if file.resolve().is_relative_to(self.root)})
        return {folder.relative_to(self.root).as_posix(): folder for folder in inside}

    def runs(self) -> list[dict[str, Any]]:
        """All runs in short: going on first, then the latest."""
        folders = self.folders()
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if name in folders}
            told = [{**self._look(name, folder).summary, **self._now(name, folder)} for name, folder in folders.items()]
        order = {"running": 0, "quiet": 1, "finished": 2}
        return sorted(told, key=lambda run: (order[run["state"]], -run["changed"], run["id"]))

    def run(self, name: str) -> dict[str, Any] | None:
        """Everything about one run, {} before its first evaluated round, None if there is no such run."""
        known = self._find(name)
        if known is None:
            return None
        return {} if known.run is None else run_data(known.run, name, matrices=matrices_each([known.run]))

    def readable(self, name: str | None = None) -> list[Run]:
        """Runs of which a report can be made: all, or the one with that name."""
        names = list(self.folders()) if name is None else [name]
        found = [known.run for known in map(self._find, names) if known is not None]
        return [run for run in found if run is not None]

    def _find(self, name: str) -> Known | None:
        folder = self.folders().get(name)
        with self._lock:
            return None if folder is None else self._look(name, folder)

    def _look(self, name: str, folder: Path) -> Known:
        signature = tuple(stamp(folder / file) for file in FILES)
        known = self._known.get(name)
        if known is None or known.signature != signature:
            known = Known(signature, summary(name, folder), read_run(folder))
            self._known[name] = known
        return known

    def _now(self, name: str, folder: Path) -> dict[str, Any]:
        """What changes with the clock alone: state, time left, who is doing what."""
        told = self._known[name].summary
        changed = max(stamp(folder / file)[0] for file in (*FILES, "live.json")) / 1e9
        if told["finished"]:
            return {"state": "finished", "eta": 0, "doing": "", "changed": changed}
        age = max(0.0, self._clock() - changed)
        since = max(0.0, self._clock() - stamp(folder / "events.jsonl")[0] / 1e9) if told["round"] else 0.0
        state = "quiet" if age > max(QUIET_AFTER, 6 * told["pace"]) else "running"
        left = told["pace"] * (told["rounds"] - told["round"]) - min(since, told["pace"])
        eta = max(0.0, left) if told["pace"] and state == "running" else None
        live = read_json(folder / "live.json")
        phase = str(live.get("phase", ""))
        doing = f"{live['client']} {PHASES.get(phase, phase)}" if "client" in live and state == "running" else ""
        return {"state": state, "eta": None if eta is None else round(eta), "doing": doing, "changed": changed}


def summary(name: str, folder: Path) -> dict[str, Any]:
    """A run in a few values, also when it has only just begun."""
    events = [event for event in read_lines(folder / "events.jsonl") if isinstance(event.get("round"), int)]
    task, told = read_json(folder / "task.json"), read_json(folder / "result.json")
    facts = told or experiment_facts(folder)
    scored = [event for event in events if event.get("intra_avg") is not None]
    paces = [float((event.get("seconds") or {}).get("total", 0)) for event in events[-5:]]
    return {
        "id": name,
        "name": folder.name,
        "method": str(facts.get("method", "?")),
        "scenario": Path(str(facts.get("scenario", "?"))).name,
        "seed": facts.get("seed", 0),
        "round": last_round(events),
        "rounds": told.get("rounds") or task.get("rounds") or facts.get("rounds") or last_round(events),
        "intra": scored[-1]["intra_avg"] if scored else None,
        "inter": scored[-1].get("inter_avg") if scored else None,
        "left_out": sum(len(event.get("left_out", [])) for event in events),
        "out_now": sorted({str(out.get("client")) for event in events[-1:] for out in event.get("left_out", [])}),
        "bytes": sum(int(event.get("bytes_up", 0)) + int(event.get("bytes_down", 0)) for event in events),
        "pace": mean(paces) if paces else 0.0,
        "finished": bool(told),
        "version": "-".join(str(part) for file in FILES for part in stamp(folder / file)),
    }


def last_round(events: list[Event]) -> int:
    return int(events[-1]["round"]) + 1 if events else 0


def experiment_facts(folder: Path) -> dict[str, Any]:
    from fedchoir.experiments.config import read
    from fedchoir.utils.errors import UsageError

    try:
        return read(folder / "experiment.toml")
    except UsageError:
        return {}


def stamp(path: Path) -> tuple[int, int]:
    """Time of change and size, (0, 0) where there is no file."""
    try:
        told = path.stat()
    except OSError:
        return (0, 0)
    return (told.st_mtime_ns, told.st_size)
