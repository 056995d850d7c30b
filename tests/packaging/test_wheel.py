"""The wheel and the source archive, installed where neither the checkout nor an optional package can be imported.

Packages are not downloaded again. The new environment gets links to the installed packages that fedchoir's base
dependencies need, and no others. So this shows that the wheel is complete and that the base dependencies suffice. It
does not show that a package index has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints; the checkout is not on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive of the tracked files, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("package")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, files.decode().split("\0")):
        if (ROOT / name).is_file() and (name.startswith(("src/", "experiments/")) or "/" not in name):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source", cwd=folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def needed(name: str, extra: str = "") -> dict[str, Distribution]:
    """The installed packages that a package needs, with theirs."""
    found: dict[str, Distribution] = {}
    open_ = [Requirement(text) for text in distribution(name).requires or ()]
    while open_:
        requirement = open_.pop()
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        try:
            found[requirement.name] = package = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # for another system
        open_ += [Requirement(text) for text in package.requires or ()]
    return found


@pytest.fixture(scope="module")
def environment(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in needed("fedchoir").values():
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
    options = ("--python", folder / "bin" / "python", "--no-deps", "--quiet", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", *options[:2], "install", *options[2:], archives[1], cwd=folder)
    return folder


def test_archives_hold_every_file_of_the_package(archives: tuple[Path, Path]) -> None:
    source, wheel = archives
    tracked = call("git", "ls-files", "src/fedchoir", cwd=ROOT).split()
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name.removeprefix("src/") for name in tracked} <= packed
    tables = {name for name in packed if name.startswith("fedchoir/experiments/tables/")}
    assert "fedchoir/experiments/tables/fccl+/table8.toml" in tables
    assert not {name.split("/")[0] for name in packed} - {
        "fedchoir",
        f"{wheel.name[: -len('-py3-none-any.whl')]}.dist-info",
    }
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "src/fedchoir/version.py"} <= names


def test_installed_wheel_runs_with_its_base_dependencies_alone(environment: Path, tmp_path: Path) -> None:
    python, fedchoir = environment / "bin" / "python", environment / "bin" / "fedchoir"
    optional = ("flwr", "opacus", "lightly", "mkdocs", "onnx", "pyarrow", "submitit", "wandb", "mlflow", "pytest")
    found = "[fedchoir.__file__, *(bool(util.find_spec(name)) for name in sys.argv[1:])]"
    probe = f"import json, sys, fedchoir; from importlib import util; print(json.dumps({found}))"
    where, *importable = json.loads(call(python, "-c", probe, *optional, cwd=tmp_path))
    assert Path(where).is_relative_to(environment)
    assert not any(importable)
    assert "fccl+" in call(fedchoir, "list", "methods", cwd=tmp_path)
    assert "sweep" in call(fedchoir, "--help", cwd=tmp_path)
    assert "fccl+/table8" in call(fedchoir, "reproduce", "--list", cwd=tmp_path)
    arguments = ("--rounds", "2", "--models", "logistic", "--device", "cpu", "--out", "run")
    call(fedchoir, "run", "fedmd", "--scenario", "heart", *arguments, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == 2
    call(fedchoir, "report", "run", cwd=tmp_path)
    serve = subprocess.run([fedchoir, "serve", "x.toml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (serve.returncode, serve.stderr) == (
        2,
        "fedchoir: Flower is not installed: pip install 'fedchoir[flower]'\n",
    )
