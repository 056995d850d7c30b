"""doctor: what this machine has for running federations, and what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import typer
from rich.markup import escape

from fedchoir.cli.options import DataRoot, console
from fedchoir.utils.sizes import readable_bytes
from fedchoir.version import __version__

app = typer.Typer()

NEEDED = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "matplotlib", "pydantic", "safetensors")
EXTRAS = {
    "flower": ("flwr", "several machines: fedchoir serve, fedchoir node"),
    "privacy": ("opacus", "differential privacy"),
    "ssl": ("lightly", "self-supervised methods"),
}
LITTLE_DISK = 5 * 2**30  # checkpoints of large federations take gigabytes
MARKS = {"good": "[green]✓[/]", "absent": "[yellow]–[/]", "bad": "[red]✗[/]"}


class Finding(NamedTuple):
    """One fact: ``good``, ``absent`` (optional and not there) or ``bad`` (needed and not there)."""

    section: str
    state: Literal["good", "absent", "bad"]
    name: str
    text: str


@app.command()
def doctor(data_root: DataRoot = None) -> None:
    """Show what this machine has (devices, versions, disk, data) and what is missing."""
    findings = examine(data_root)
    for section in dict.fromkeys(finding.section for finding in findings):
        console.print(f"[bold]{section}[/]")
        for finding in (f for f in findings if f.section == section):
            console.print(f"  {MARKS[finding.state]} {finding.name:<15} {escape(finding.text)}", soft_wrap=True)
    if any(finding.section == "data" and finding.state == "absent" for finding in findings):
        console.print("  [dim]fedchoir data show: how to get what is missing[/]")
    if bad := [finding.name for finding in findings if finding.state == "bad"]:
        console.print(f"[red]to put right: {', '.join(bad)}[/]")
        raise typer.Exit(1)
    console.print("[green]ready[/]: fedchoir demo")


def examine(root: Path | None = None, here: Path | None = None) -> list[Finding]:
    """All findings; runs would be written to ``here``."""
    return [*versions(), *devices(), *disk(root, here or Path.cwd()), *data(root)]


def versions() -> Iterator[Finding]:
    yield Finding("versions", "good", "fedchoir", f"{__version__}, Python {platform.python_version()}, {sys.platform}")
    for package in NEEDED:
        known = installed(package)
        yield Finding("versions", "good" if known else "bad", package, known or "missing: pip install fedchoir again")
    for extra, (package, purpose) in EXTRAS.items():
        if known := installed(package):
            yield Finding("versions", "good", f"extra {extra}", f"{package} {known} ({purpose})")
        else:
            text = f"not installed ({purpose}): pip install 'fedchoir[{extra}]'"
            yield Finding("versions", "absent", f"extra {extra}", text)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def devices() -> Iterator[Finding]:
    import torch

    from fedchoir.utils.threads import cores

    try:
        memory = f", {readable_bytes(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))} memory"
    except (ValueError, OSError, AttributeError):  # unknown on some systems
        memory = ""
    yield Finding("devices", "good", "cpu", f"{cores()} cores, torch uses {torch.get_num_threads()} threads{memory}")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        yield Finding("devices", "absent", "cuda", f"{why}; runs use the CPU (--device auto)")
    for k in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(k)
        kind = f"compute capability {gpu.major}.{gpu.minor}, {'bf16' if gpu.major >= 8 else 'no bf16'}"
        yield Finding("devices", "good", f"cuda:{k}", f"{gpu.name}, {readable_bytes(gpu.total_memory)}, {kind}")


def disk(root: Path | None, here: Path) -> Iterator[Finding]:
    from fedchoir.data.image.files import data_root

    for name, folder in (("runs, here", here), ("data root", data_root(root))):
        free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
        text = f"{folder}, {readable_bytes(free)} free" + ("" if folder.exists() else " (does not exist yet)")
        yield Finding("disk", "good" if free >= LITTLE_DISK else "absent", name, text)
    if not os.access(here, os.W_OK):
        yield Finding("disk", "bad", "runs, here", f"{here} cannot be written; change the folder or give --out")


def data(root: Path | None) -> Iterator[Finding]:
    """For every scenario whether it could run now, and which data sets it lacks."""
    from fedchoir.data.availability import data_sets_of
    from fedchoir.data.registry import SCENARIOS

    for name, scenario in SCENARIOS.items():
        places = {known.name: known.place for known in data_sets_of(scenario, root)}
        if lacking := [source for source, place in places.items() if not place]:
            text = f"lacks {', '.join(lacking)}: see fedchoir data show"
            yield Finding("data", "absent", name, text)
        else:
            yield Finding("data", "good", name, ", ".join(places.values()) or "comes with fedchoir")
