"""``fedchoir doctor``: what this machine has for running federations, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from fedchoir.data.image.datasets import SOURCES, found
from fedchoir.data.image.files import data_root
from fedchoir.data.registry import SCENARIOS
from fedchoir.utils.sizes import readable_bytes
from fedchoir.version import __version__

State = Literal["good", "absent", "bad"]
NEEDED = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "matplotlib", "pydantic", "safetensors")
EXTRAS = {
    "flower": ("flwr", "several machines: fedchoir serve, fedchoir node"),
    "privacy": ("opacus", "differential privacy"),
    "ssl": ("lightly", "self-supervised methods"),
}
LITTLE_DISK = 5 * 2**30
"""Checkpoints of large federations take gigabytes."""


@dataclass(frozen=True)
class Finding:
    """One fact: ``good``, ``absent`` (something one may want) or ``bad`` (something that must be put right)."""

    section: str
    state: State
    name: str
    text: str


def examine(root: Path | None = None, here: Path | None = None) -> list[Finding]:
    """Everything there is to say."""
    return [*versions(), *devices(), *disk(root, here or Path.cwd()), *data(root)]


def versions() -> Iterator[Finding]:
    yield Finding("versions", "good", "fedchoir", f"{__version__}, Python {platform.python_version()}, {sys.platform}")
    for package in NEEDED:
        known = installed(package)
        yield Finding("versions", "good" if known else "bad", package, known or "missing: pip install fedchoir again")
    for extra, (package, purpose) in EXTRAS.items():
        known = installed(package)
        text = (
            f"{package} {known} ({purpose})" if known else f"not installed ({purpose}): pip install 'fedchoir[{extra}]'"
        )
        yield Finding("versions", "good" if known else "absent", f"extra {extra}", text)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def devices() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = f", {readable_bytes(total)} memory" if (total := memory_bytes()) else ""
    yield Finding("devices", "good", "cpu", f"{cores} cores, torch uses {torch.get_num_threads()} threads{memory}")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        yield Finding("devices", "absent", "cuda", f"{why}; runs go on the CPU (--device auto)")
    for k in range(torch.cuda.device_count()):
        told = torch.cuda.get_device_properties(k)
        kind = f"compute capability {told.major}.{told.minor}, {'bf16' if told.major >= 8 else 'no bf16'}"
        yield Finding("devices", "good", f"cuda:{k}", f"{told.name}, {readable_bytes(told.total_memory)}, {kind}")


def memory_bytes() -> int:
    """Main memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def disk(root: Path | None, here: Path) -> Iterator[Finding]:
    for name, folder in (("runs, here", here), ("data root", data_root(root))):
        there = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(there).free
        state: State = "good" if free >= LITTLE_DISK else "absent"
        text = f"{folder}, {readable_bytes(free)} free" + ("" if folder.exists() else " (not there yet)")
        yield Finding("disk", state, name, text)
    if not os.access(here, os.W_OK):
        yield Finding("disk", "bad", "runs, here", f"{here} cannot be written; go elsewhere or give --out")


def data(root: Path | None) -> Iterator[Finding]:
    """For every scenario whether it could be run now, and what it lacks."""
    for name, known in SCENARIOS.items():
        sources = [source for source in known.sources if source in SOURCES]
        lacking = [source for source in sources if not found(source, root)]
        if not sources:
            yield Finding("data", "good", name, "comes with fedchoir")
        elif lacking:
            yield Finding(
                "data", "absent", name, f"lacks {', '.join(lacking)}: fedchoir data show says how to get them"
            )
        else:
            yield Finding("data", "good", name, ", ".join(found(source, root) for source in sources))
