"""The pages about your own method, model and data: what they show is run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedchoir import methods
from fedchoir.cli.app import app
from fedchoir.deploy.config import read_federation
from fedchoir.experiments.config import read_experiment
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.utils import plugins
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
METHOD, MODEL, DATA = (ROOT / "docs" / f"your-own-{what}.md" for what in ("method", "model", "data"))
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```", re.M | re.S)


class Block(NamedTuple):
    """A code block of a page; ``file`` is its title, the name under which the reader saves it."""

    kind: str
    code: str
    file: str = ""


def blocks(page: Path) -> list[Block]:
    """Every block that is to be run, in order. Those marked as slow need a server, a download or minutes."""
    found = []
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', block["info"])
        kind, *marks = re.findall(r"\w+", block["info"])
        if "slow" not in marks:
            found.append(Block(kind, block["code"], title[1] if title else ""))
    return found


@pytest.fixture
def vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's method as a plug-in, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vote.py"
    path.write_text(next(block.code for block in blocks(METHOD) if block.kind == "python"))
    monkeypatch.setenv(plugins.VARIABLE, "vote.py")
    methods.registry.cache_clear()
    yield path
    monkeypatch.undo()
    methods.registry.cache_clear()


def run_commands(code: str) -> str:
    """The `fedchoir` lines of a block, in this process; returns what they print. ``> FILE`` is written."""
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("fedchoir "):
            command, _, file = line.partition(" > ")
            done = CliRunner().invoke(app, shlex.split(command)[1:])
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception}"
            if file:
                Path(file).write_text(done.stdout)
            printed += done.output
    return printed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder. Python finds the files in it, and forgets them after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def follow(page: Path) -> None:
    """Do what a page shows, block by block: save files, execute Python, run commands and compare their output."""
    printed = ""
    for kind, code, file in blocks(page):
        if kind == "text" and printed:
            for line in code.splitlines():
                assert " ".join(line.split()) in " ".join(printed.split()), f"not printed: {line}\n{printed}"
        printed = ""
        if file:
            Path(file).write_text(code)
        elif kind == "python":
            exec(compile(code, page.name, "exec"), {"__name__": "docs"})
        elif kind == "bash":
            lines = code.replace("\\\n", " ").splitlines()
            assert all(line.startswith("fedchoir ") for line in lines), lines
            printed = run_commands(code)


def test_a_new_method_is_short_and_runs(vote: Path) -> None:
    code = vote.read_text()
    assert len(code.splitlines()) <= 60
    assert len(re.findall(r"^\s*(?:from|import) fedchoir", code, re.M)) == 1
    assert "vote" in methods.registry()
    run_commands(next(block.code for block in blocks(METHOD) if block.kind == "bash"))
    assert list(Path("runs").glob("*vote*/result.json"))


def test_a_new_method_keeps_the_contract_by_being_registered(vote: Path) -> None:
    """The page's own command, with the checks that matter most."""
    line = next(
        line for block in blocks(METHOD) if block.kind == "bash" for line in block.code.splitlines() if "pytest" in line
    )
    assert line == "FEDCHOIR_PLUGINS=vote.py pytest tests/contract -k vote"
    checks = "vote and (learns or resume or declares or private or nonsense or order)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", "-k", checks]
    environment = {**os.environ, plugins.VARIABLE: str(vote)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") >= 6


def test_the_other_python_of_the_page_compiles_and_its_sweep_plans(vote: Path, tmp_path: Path) -> None:
    for block in blocks(METHOD):
        if block.kind == "python":
            compile(block.code, "docs", "exec")
        if block.kind == "toml":
            (tmp_path / "votes.toml").write_text(block.code)
    labels = {job.label for job in jobs_of(read_sweep(tmp_path / "votes.toml"), tmp_path)}
    assert labels == {"solo", "fedmd", "fccl+", "vote", "vote, not sharpened"}


def test_your_own_data_as_written(folder: Path) -> None:
    follow(DATA)
    assert (folder / "runs" / "hospitals" / "result.json").is_file()
    assert (folder / "runs" / "split" / "result.json").is_file()
    federation = read_federation(folder / "federation.toml").plan().params
    simulated = read_experiment(folder / "clinics.toml").settings
    assert [column.name for column in federation.columns] == [column["name"] for column in simulated["columns"]]
    assert (federation.target, federation.scaling) == (simulated["target"], simulated["scaling"])


def test_your_own_model_as_written(folder: Path) -> None:
    follow(MODEL)
    exported = folder / "runs" / "heart" / "fedmd" / "export"
    assert (exported / "cleveland-best.onnx").is_file()
    rows = pd.read_csv(folder / "predictions.csv")
    assert list(rows.columns) == ["sample", "class", "p(absent)", "p(present)"]
    session = onnxruntime.InferenceSession(exported / "cleveland-best.onnx")
    patients = np.array([[54, 1, 3, 130, 250, 0, 0, 140, 1, np.nan]], dtype=np.float32)  # as on the page
    (probabilities,) = session.run(None, {"samples": patients})
    assert probabilities[0] == pytest.approx(rows.iloc[0, 2:].to_numpy(float), abs=1e-4)


# -- plug-ins ----------------------------------------------------------------------------------------------------------


def registered(monkeypatch: pytest.MonkeyPatch, value: str) -> dict[str, type[methods.Method]]:
    monkeypatch.setenv(plugins.VARIABLE, value)
    methods.registry.cache_clear()
    try:
        return methods.registry()
    finally:
        monkeypatch.delenv(plugins.VARIABLE)
        methods.registry.cache_clear()


def test_a_plugin_that_cannot_be_loaded_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import nothing_of_this_name\n")
    taken = tmp_path / "taken.py"
    taken.write_text("from fedchoir.methods.solo import Solo\nclass Mine(Solo):\n    name = 'fedavg'\n")
    for value, line in (
        (str(bad), "bad.py cannot be loaded: ModuleNotFoundError"),
        (str(tmp_path / "none.py"), r"names .*none\.py, which is not there"),
        ("no_such_module", "names the module no_such_module"),
        (str(taken), "has a method 'fedavg', but fedchoir.methods.fedavg has one already"),
    ):
        with pytest.raises(UsageError, match=line):
            registered(monkeypatch, value)
    with pytest.raises(UsageError, match=r"--plugin nowhere\.py is not a file"):
        plugins.add_plugin(Path("nowhere.py"))


def test_several_plugins_and_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from fedchoir.methods.solo import Solo\nclass Mine(Solo):\n    name = '{}'\n    title = 'mine'\n"
    for folder, name in (("a", "first"), ("b", "second")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(source.format(name))  # two files of one name
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "third_plugin.py").write_text(source.format("third"))
    told = tmp_path / "package" / "mine-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[fedchoir.methods]\nthird = third_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    names = registered(monkeypatch, os.pathsep.join(str(tmp_path / f / "mine.py") for f in "ab"))
    assert {"first", "second", "third"} <= set(names)
    monkeypatch.undo()
    methods.registry.cache_clear()
    assert not {"first", "second", "third"} & set(methods.registry())
