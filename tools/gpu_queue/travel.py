"""What travels between the machines: code, data and state there; results, checkpoints and pretrained models back."""

from __future__ import annotations

import json
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from fedchoir.core.checkpoint import latest
from fedchoir.experiments.config import Experiment
from fedchoir.experiments.run import MAY_CHANGE, differences
from fedchoir.experiments.scheduler import lock_of, log_of
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write, atomic_write_json
from tools.gpu_queue.archives import packed, read_archives, write_archives
from tools.gpu_queue.tasks import Row, Task, progress, progress_of

CODE = ("src", "tools", "results", "experiments", "pyproject.toml", "setup.py", "constraints.txt")
SMALL_FILES = ("experiment.toml", "result.json", "events.jsonl", "steps.jsonl", "task.json", "models.json")
SETUP = """\
# bash setup.sh [FOLDER]: join the parts of a bundle and unpack them
set -eo pipefail
here=$(cd "$(dirname "$0")" && pwd); mkdir -p "${{1:-.}}"; target=$(cd "${{1:-.}}" && pwd)
cd "$here"
cat {names} | tar -xJ -C "$target"
printf 'cd %q; export PYTHONPATH=src  # so that this fedchoir is imported, and none that is installed\n' "$target"
"""


class Group(NamedTuple):
    """Files that belong together: all of them travel or none."""

    stem: str  # of the archive
    what: str
    files: list[Path]


def state_groups(tasks: Sequence[Task], state: Path) -> Iterator[Group]:
    """What must travel, most valuable first: what finished runs need to be kept, the same of unfinished ones with their
    logs, then the last checkpoint of each of these, then those to keep, then the pretrained models."""
    finished = [task for task in tasks if task.finished]
    unfinished = [task for task in tasks if not task.finished]
    manifests = sorted({task.job.out.parent / "sweep.json" for task in tasks})
    yield Group("results", "labels", [path for path in manifests if path.is_file()])
    for task in (*finished, *unfinished):
        log = [] if task.finished or not task.job.out.is_dir() else [log_of(task.job)]
        files = [task.job.out / name for name in SMALL_FILES]
        yield Group("results", f"results of {_name(task)}", [path for path in (*files, *log) if path.is_file()])
    for task in (*unfinished, *(task for task in finished if any(place.row.keep for place in task.places))):
        folder = task.job.out / "checkpoint"
        if newest := latest(folder):
            files = [*sorted(path for path in newest.rglob("*") if path.is_file()), folder / "latest.json"]
            yield Group("checkpoints", f"checkpoint of {_name(task)}", files)
    for path in sorted(state.glob("pretrained/*.safetensors")):
        yield Group("checkpoints", f"pretrained model {path.stem}", [path])


def _name(task: Task) -> str:
    return f"{task.job.out.parent.name}/{task.job.out.name}"


def packed_state(tasks: Sequence[Task], state: Path, limit: float) -> tuple[dict[str, bytes], list[str]]:
    """The state as two archives of at most ``limit`` bytes together, and what did not fit. A checkpoint that does not
    fit is made again from an older one, or from the start."""
    pieces: dict[str, list[bytes]] = {"results": [], "checkpoints": []}
    left_out, total = [], 0
    for group in state_groups(tasks, state):
        if not group.files:
            continue
        piece = packed((path, f"state/{path.relative_to(state).as_posix()}") for path in group.files)
        if total + len(piece) > limit:
            left_out.append(f"{group.what} ({len(piece) / 2**20:.1f} MiB)")
            continue
        total += len(piece)
        pieces[group.stem].append(piece)
    return {stem: b"".join(own) for stem, own in pieces.items()}, left_out


def save_state(tasks: Sequence[Task], state: Path, out: Path, part: int, limit: float) -> tuple[list[Path], list[str]]:
    """Results and checkpoints as two archives: without the second, the first can be unpacked. Returns the files and
    what did not fit."""
    archives, left_out = packed_state(tasks, state, limit)
    if not any(archives.values()):
        why = "nothing fits into --limit" if left_out else f"{state} has no run of the queue; --state names its folder"
        raise UsageError(f"nothing was saved: {why}")
    return write_archives(archives, out, part), left_out


def pack_bundle(
    rows: Sequence[Row], tasks: Sequence[Task], state: Path, data_root: Path | None, out: Path, part: int, limit: float
) -> tuple[list[Path], list[str]]:
    """Code, data and state as one archive with a script that unpacks it. Returns the files and what did not fit."""
    content = b"".join(packed([file]) for file in data_files(rows, data_root))
    archives, left_out = packed_state(tasks, state, limit)
    made = write_archives({"bundle": packed(code_files()) + content + b"".join(archives.values())}, out, part)
    atomic_write(out / "setup.sh", SETUP.format(names=" ".join(path.name for path in made)))
    return made, left_out


def code_files() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(["git", "ls-files", *CODE], capture_output=True, text=True, check=True).stdout.split("\n")
    kept = (name for name in listed if name and not name.endswith("runs.jsonl") and Path(name).is_file())
    yield from ((Path(name), name) for name in kept)


def data_files(rows: Sequence[Row], data_root: Path | None) -> list[tuple[Path, str]]:
    names = dict.fromkeys(name for row in rows for name in row.data)
    for name in names:
        if data_root is None or not (data_root / name).exists():
            raise UsageError(f"data: {name} is not in the data root, {data_root}; give --data-root")
    return [(Path(data_root or "") / name, f"data/{name}") for name in names]


# -- what comes back ---------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    taken: list[str]
    equal: list[str]  # runs that are as far here
    behind: list[str]  # runs that are further here, in words
    problems: list[str]  # archives that could not be read, and runs that are other ones here or are being executed


def load_state(folder: Path, state: Path) -> Loaded:
    """Join what another machine saved to the state. A run is replaced as a whole, and only by one that is further: its
    result, rounds and checkpoint are always of one run."""
    saves, problems = read_archives(folder)
    loaded = Loaded([], [], [], problems)
    for files in saves:
        for name, own in _runs_in(files).items():
            try:
                with lock_of(state / name):  # the process that executes a run holds it
                    _join_run(name, own, files, state, loaded)
            except Timeout:
                problems.append(f"{name}, which is being executed here; load it when that has ended")
        for name, content in files.items():
            first, *rest = name.split("/")
            if rest == ["sweep.json"]:
                _join_labels(state / name, content)
            elif first == "pretrained" and not (state / name).exists():
                atomic_write(state / name, content)
    return loaded


def _join_run(name: str, own: dict[str, bytes], files: dict[str, bytes], state: Path, loaded: Loaded) -> None:
    target = state / name
    here, there = progress_of(target), progress(own.get)
    if changed := _changed(target, own):
        loaded.problems.append(f"{name}, which is another run here: {changed}; move one of them")
    elif (there > here and not here.finished) or _only_adds_checkpoint(target, own):
        _replace(target, own, state)
        loaded.taken.append(name)
        if (log := f"{target.parent.name}/logs/{target.name}.log") in files:
            atomic_write(state / log, files[log])
    elif there == here:
        loaded.equal.append(name)
    else:
        loaded.behind.append(f"{name}: here {here}, there {there}")


def _changed(target: Path, own: dict[str, bytes]) -> str:
    """What differs between the settings here and there, in words; nothing where there is no run here."""
    toml = target / "experiment.toml"
    if not toml.is_file():
        return ""
    texts = (toml.read_bytes(), own[toml.name])
    try:
        here, there = (Experiment(**tomllib.loads(text.decode())) for text in texts)
    except (ValueError, RecursionError) as error:
        return f"one {toml.name} cannot be read: {error}"
    return differences(here, there, MAY_CHANGE)


def _runs_in(files: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    """The files of each run of an archive by their name in its folder. A checkpoint whose results were in an archive
    that is lost belongs to no run."""
    runs: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        section, *rest = name.split("/")
        if len(rest) > 1 and rest[0] != "logs" and section != "pretrained":
            runs.setdefault(f"{section}/{rest[0]}", {})["/".join(rest[1:])] = content
    return {name: own for name, own in runs.items() if "experiment.toml" in own}


def _only_adds_checkpoint(target: Path, own: dict[str, bytes]) -> bool:
    """Whether this is the same finished run, with a checkpoint that is missing here."""
    result = target / "result.json"
    same = result.is_file() and result.read_bytes() == own.get("result.json")
    return same and progress(own.get).saved > progress_of(target).saved


def _replace(target: Path, own: dict[str, bytes], state: Path) -> None:
    """Write the folder of a run beside the old one, and then exchange them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state, prefix=".loading-") as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        for name in sorted(own, key=lambda name: name == "checkpoint/latest.json"):  # after the files that it names
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(own[name])
        if target.exists():
            target.rename(old)
        new.rename(target)


def _join_labels(path: Path, content: bytes) -> None:
    """Add the labels of runs in a ``sweep.json`` to the one that is here."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):  # a damaged one: run writes it again
        here, there = json.loads(path.read_text()) if path.is_file() else {}, json.loads(content)
        joined = {key: {**there.get(key, {}), **here.get(key, {})} for key in ("runs", "published")}
        atomic_write_json(path, {**there, **here, **joined})
