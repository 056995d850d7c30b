"""docs/your-own-method.md and docs/your-own-data.md: what they show is run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedchoir import methods
from fedchoir.cli.app import app
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.utils import plugins
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
METHOD, DATA = ROOT / "docs" / "your-own-method.md", ROOT / "docs" / "your-own-data.md"
FENCE = re.compile(r"^```(?P<kind>\w+)(?P<slow> slow)?\n(?P<code>.*?)^```", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, code) of every block that is to be run, in order."""
    return [(m["kind"], m["code"]) for m in FENCE.finditer(page.read_text(encoding="utf-8")) if not m["slow"]]


@pytest.fixture
def vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's method as a plug-in, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vote.py"
    path.write_text(next(code for kind, code in blocks(METHOD) if kind == "python"))
    monkeypatch.setenv(plugins.VARIABLE, "vote.py")
    methods.registry.cache_clear()
    yield path
    monkeypatch.undo()
    methods.registry.cache_clear()


def run_commands(code: str) -> None:
    """The `fedchoir` lines of a block, in this process."""
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("fedchoir "):
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception}"


def test_a_new_method_is_short_and_runs(vote: Path) -> None:
    code = vote.read_text()
    assert len(code.splitlines()) <= 60
    assert len(re.findall(r"^\s*(?:from|import) fedchoir", code, re.M)) == 1
    assert "vote" in methods.registry()
    run_commands(next(code for kind, code in blocks(METHOD) if kind == "bash"))
    assert list(Path("runs").glob("*vote*/result.json"))


def test_a_new_method_keeps_the_contract_by_being_registered(vote: Path) -> None:
    """The page's own command, with the checks that matter most."""
    line = next(
        line for kind, code in blocks(METHOD) if kind == "bash" for line in code.splitlines() if "pytest" in line
    )
    assert line == "FEDCHOIR_PLUGINS=vote.py pytest tests/contract -k vote"
    checks = "vote and (learns or resume or declares or private or nonsense or order)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", "-k", checks]
    environment = {**os.environ, plugins.VARIABLE: str(vote)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") >= 6


def test_the_other_python_of_the_page_compiles_and_its_sweep_plans(vote: Path, tmp_path: Path) -> None:
    for kind, code in blocks(METHOD):
        if kind == "python":
            compile(code, "docs", "exec")
        if kind == "toml":
            (tmp_path / "votes.toml").write_text(code)
    labels = {job.label for job in jobs_of(read_sweep(tmp_path / "votes.toml"), tmp_path)}
    assert labels == {"solo", "fedmd", "fccl+", "vote", "vote, not sharpened"}


def test_your_own_data_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, code in blocks(DATA):
        if kind == "python":
            exec(compile(code, "docs", "exec"), {"__name__": "docs"})
        elif kind == "bash":
            run_commands(code)
    assert (tmp_path / "runs" / "hospitals" / "result.json").is_file()
    assert (tmp_path / "runs" / "split" / "result.json").is_file()


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
