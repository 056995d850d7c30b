"""Load finished runs for tables and pages, from run folders or from the results store.

The store is one file per section, ``results/SECTION/runs.jsonl``: one line of JSON per run with its name, the label of
its row, its experiment, every field of its result, and its rounds as columns. It loads with pandas::

    runs = pandas.read_json("results/digits/runs.jsonl", lines=True)
    runs.groupby("label")["inter_avg"].agg(["mean", "std"])
    pandas.DataFrame(runs.events[0])        # the rounds of the first run
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedchoir.core.result import Event, Result, load_result, read_events
from fedchoir.utils.errors import UsageError

STORE = "runs.jsonl"
NESTED = ("losses", "seconds")
"""Fields of an event whose values become columns of their own."""
Record = dict[str, Any]


def find_results(paths: Sequence[Path]) -> list[Result]:
    """Return every finished run below the paths: run folders (``result.json``) and stores (``runs.jsonl``).

    Each result has extra fields, see `extra`. The order is that of the sweep file, otherwise that of the folders.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        found += [path] if path.is_file() else sorted([*path.rglob("result.json"), *path.rglob(STORE)])
    if not found:
        raise UsageError(f"no result.json or {STORE} in {', '.join(map(str, paths))}: no run there has finished yet")
    results: list[Result] = []
    for path in dict.fromkeys(found):
        results += stored_results(path) if path.suffix == ".jsonl" else [_folder_result(path)]
    return sorted(results, key=lambda result: extra(result, "order") or 0)


def extra(result: Result, name: str) -> Any:
    """Return what is known about a run beside its result, or None.

    ``name`` and ``folder`` for every run (a stored run's folder does not exist); ``label``, ``table``, ``published``
    and ``order`` for a run of a sweep; ``experiment`` for a stored run.
    """
    return (result.model_extra or {}).get(name)


def events_of(result: Result) -> list[Event]:
    """Return the events of a run, one per round; an empty list where none were kept."""
    if (stored := extra(result, "events")) is not None:
        return unpack_events(stored)
    folder = extra(result, "folder")
    return read_events(Path(folder) / "events.jsonl") if folder else []


def evaluated(result: Result) -> list[Event]:
    """Return the events of the rounds after which the models were tested."""
    return [event for event in events_of(result) if event["intra_avg"] is not None]


def stored_results(path: Path) -> list[Result]:
    """Return the runs of one store, in its order."""
    results = []
    for order, record in enumerate(read_records(path)):
        try:
            results.append(Result(**record, order=order, folder=str(path.parent / record["name"])))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}, line {order + 1}: {str(error).splitlines()[0]}") from None
    return results


def _folder_result(path: Path) -> Result:
    """Load one ``result.json``, with label and published row from the sweep's manifest, if there is one."""
    folder = path.parent
    known: Record = {"folder": str(folder), "name": folder.name}
    try:
        manifest = json.loads((folder.parent / "sweep.json").read_text())
        table, label = manifest.get("table"), manifest["runs"][folder.name]
        published = manifest.get("published", {}).get(folder.name) or ([f"{table}:{label}"] if table else [])
        order = list(manifest["runs"]).index(folder.name)
        known |= {"label": label, "table": table, "published": published, "order": order}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return load_result(path).model_copy(update=known)


def read_records(path: Path) -> list[Record]:
    """Return the records of a store file."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} is not a store of runs: {error}") from None


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a store file: one line per run, keys sorted, so that a new run is one new line of a diff."""
    lines = [json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":")) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def pack_events(events: Sequence[Event]) -> dict[str, list[Any]]:
    """Turn the events of a run into columns with one value per round.

    Losses and seconds become a column each, such as ``losses/mnist/local_loss``. None in such a column, and in
    ``own``, means that the round has no such value.

    >>> pack_events([{"round": 0, "seconds": {"total": 2.5}}, {"round": 1, "seconds": {"total": 2.0}}])
    {'round': [0, 1], 'seconds/total': [2.5, 2.0]}
    """
    flat = [dict(_leaves("", event)) for event in events]
    return {key: [row.get(key) for row in flat] for key in dict.fromkeys(key for row in flat for key in row)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not path or (path.split("/")[0] in NESTED and isinstance(value, dict)):
        for key, inner in value.items():
            yield from _leaves(f"{path}/{key}" if path else key, inner)
    else:
        yield path, value


def unpack_events(columns: Mapping[str, Sequence[Any]]) -> list[Event]:
    """Turn the columns of `pack_events` into events again.

    >>> unpack_events({"round": [0], "losses/mnist/local_loss": [0.5], "seconds/total": [2.5], "accuracy": [None]})
    [{'losses': {'mnist': {'local_loss': 0.5}}, 'seconds': {'total': 2.5}, 'round': 0, 'accuracy': None}]
    """
    events: list[Event] = [{group: {} for group in NESTED} for _ in next(iter(columns.values()), ())]
    for column, values in columns.items():
        group, _, leaf = column.partition("/")
        client, _, name = leaf.rpartition("/")
        for event, value in zip(events, values, strict=True):
            if not leaf and (value is not None or column != "own"):
                event[column] = value
            elif leaf and value is not None:
                (event[group].setdefault(client, {}) if client else event[group])[name] = value
    return events
