"""The runs below a folder, each read again only when one of its files has changed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedchoir.reporting.progress import activity
from fedchoir.reporting.run_data import Run, matrices_each, read_json, read_run, read_valid_events, run_data, tidy
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml

STALLED_AFTER = 120.0
"""Seconds without a change after which a run with short rounds counts as stalled."""
FILES = ("events.jsonl", "result.json", "task.json", "experiment.toml")
Stamp = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A run as it was when it was last read."""

    version: tuple[Stamp, ...]
    summary: dict[str, Any]
    run: Run | None


class RunIndex:
    """The runs below a root folder. A request can only name runs that were found there, not paths."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root.resolve()
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._lock = threading.RLock()  # the server handles requests in threads

    def folders(self) -> dict[str, Path]:
        """The folder of every run by name; links to outside the root are ignored."""
        files = [file for name in ("experiment.toml", *FILES[:2]) for file in self.root.rglob(name)]
        inside = sorted({file.parent for file in files if file.resolve().is_relative_to(self.root)})
        return {folder.relative_to(self.root).as_posix(): folder for folder in inside}

    def runs(self) -> list[dict[str, Any]]:
        """A summary of every run: running ones first, then the latest."""
        folders = self.folders()
        with self._lock:
            self._entries = {name: entry for name, entry in self._entries.items() if name in folders}
            found = [self._current(self._entry(name, folder), folder) for name, folder in folders.items()]
        order = ("running", "stalled", "finished")
        return sorted(found, key=lambda run: (order.index(run["state"]), -run["changed"], run["id"]))

    def run(self, name: str) -> dict[str, Any] | None:
        """The data of one run: {} before its first evaluated round, None if there is no such run."""
        entry = self._find(name)
        if entry is None:
            return None
        return {} if entry.run is None else run_data(entry.run, name, matrices=matrices_each([entry.run]))

    def readable(self, name: str | None = None) -> list[Run]:
        """The runs that a report can show: all, or the one with that name."""
        entries = map(self._find, list(self.folders()) if name is None else [name])
        return [entry.run for entry in entries if entry is not None and entry.run is not None]

    def _find(self, name: str) -> Entry | None:
        folder = self.folders().get(name)
        with self._lock:
            return None if folder is None else self._entry(name, folder)

    def _entry(self, name: str, folder: Path) -> Entry:
        version = tuple(stamp(folder / file) for file in FILES)
        entry = self._entries.get(name)
        if entry is None or entry.version != version:
            entry = self._entries[name] = Entry(version, summary(name, folder, version), read_run(folder))
        return entry

    def _current(self, entry: Entry, folder: Path) -> dict[str, Any]:
        """A summary with what changes with the clock: state, remaining time, current activity."""
        known, now = entry.summary, self._clock()
        changed = max(stamp(folder / file)[0] for file in (*FILES, "live.json")) / 1e9
        if known["finished"]:
            return {**known, "state": "finished", "eta": 0, "activity": "", "changed": changed}
        pace, eta, doing = known["pace"], None, ""
        state = "stalled" if now - changed > max(STALLED_AFTER, 6 * pace) else "running"
        if pace and state == "running":
            since = max(0.0, now - stamp(folder / "events.jsonl")[0] / 1e9)
            eta = round(max(0.0, pace * (known["rounds"] - known["round"]) - min(since, pace)))
        live = read_json(folder / "live.json")
        if "client" in live and state == "running":
            doing = activity(str(live["client"]), str(live.get("phase", "")))
        return {**known, "state": state, "eta": eta, "activity": doing, "changed": changed}


def summary(name: str, folder: Path, version: tuple[Stamp, ...]) -> dict[str, Any]:
    """The main numbers of a run, also of one that has just started."""
    events = read_valid_events(folder / "events.jsonl")
    task, result = read_json(folder / "task.json"), read_json(folder / "result.json")
    facts = result or _experiment(folder)
    scored = [result, *(event for event in events if event.get("intra_avg") is not None)]
    paces = [float(event.get("seconds", {}).get("total", 0)) for event in events[-5:]]
    planned = [n for source in (result, task, facts) if isinstance(n := source.get("rounds"), int)]
    done = events[-1]["round"] + 1 if events else planned[0] if result and planned else 0
    return {
        "id": name,
        "name": folder.name,
        "method": str(facts.get("method", "?")),
        "scenario": Path(str(facts.get("scenario", "?"))).name,
        "seed": str(facts.get("seed", 0)),
        "round": done,
        "rounds": planned[0] if planned else done,
        **{key: tidy(scored[-1].get(f"{key}_avg"), 6) for key in ("intra", "inter")},
        "left_out": sum(len(event.get("left_out", [])) for event in events),
        "out_now": sorted({str(out.get("client")) for event in events[-1:] for out in event.get("left_out", [])}),
        "bytes": sum(event.get("bytes_up", 0) + event.get("bytes_down", 0) for event in events),
        "pace": tidy(mean(paces)) or 0.0 if paces else 0.0,
        "finished": bool(result),
        "version": "-".join(str(part) for pair in version for part in pair),
    }


def _experiment(folder: Path) -> dict[str, Any]:
    try:
        return read_toml(folder / "experiment.toml")
    except UsageError:
        return {}


def stamp(path: Path) -> Stamp:
    """Time of the last change and size; (0, 0) without a file."""
    try:
        known = path.stat()
    except OSError:
        return (0, 0)
    return (known.st_mtime_ns, known.st_size)
