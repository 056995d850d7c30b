"""Plug-ins: files, modules and entry points, and one line for what cannot be loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fedchoir.utils.errors import UsageError
from fedchoir.utils.plugins import VARIABLE, add_plugin, load_plugins


def write(path: Path, text: str = "VALUE = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_without_plugins_nothing_is_loaded() -> None:
    assert load_plugins() == set()


def test_files_of_the_same_name_are_two_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / folder / "mine.py", f"VALUE = {folder!r}\n") for folder in "ab"]
    monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, paths)))
    names = load_plugins()
    assert len(names) == 2
    assert {sys.modules[name].VALUE for name in names} == {"a", "b"}
    assert load_plugins() == names  # the modules are not executed again


def test_a_file_is_executed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = write(tmp_path / "counted.py", f"open({str(tmp_path / 'log')!r}, 'a').write('x')\n")
    monkeypatch.setenv(VARIABLE, str(counted))
    load_plugins(), load_plugins()
    assert (tmp_path / "log").read_text() == "x"


def test_modules_and_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "named_plugin.py")
    write(tmp_path / "installed_plugin.py")
    write(tmp_path / "mine-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    write(tmp_path / "mine-1.0.dist-info" / "entry_points.txt", "[fedchoir.methods]\nmine = installed_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, "named_plugin")
    assert load_plugins() == {"named_plugin", "installed_plugin"}


def test_added_files_reach_the_environment_of_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "named_plugin")
    write(tmp_path / "mine.py")
    add_plugin(Path("mine.py"))
    assert os.environ[VARIABLE] == os.pathsep.join(["named_plugin", str(tmp_path / "mine.py")])
    with pytest.raises(UsageError, match=r"--plugin nowhere\.py is not a file"):
        add_plugin(Path("nowhere.py"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("import nothing_of_this_name\n", r"broken\.py cannot be loaded: ModuleNotFoundError"),
        ("def half(\n", r"broken\.py cannot be loaded: SyntaxError"),
        ("1 / 0\n", r"broken\.py cannot be loaded: ZeroDivisionError"),
    ],
)
def test_a_broken_file_is_named_with_its_error(
    content: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "broken.py", content)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UsageError, match=line):
        load_plugins()
    write(path)  # repaired: it loads in the same process
    assert len(load_plugins()) == 1


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.py"))
    with pytest.raises(UsageError, match=r"names .*none\.py, which is not there"):
        load_plugins()
    monkeypatch.setenv(VARIABLE, "no_such_module")
    with pytest.raises(UsageError, match="names the module no_such_module"):
        load_plugins()
