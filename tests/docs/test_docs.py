"""The documentation: it builds without a warning, and the code in it works as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from fedchoir import methods
from fedchoir.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
RUN_AS_WRITTEN = ["index.md", "concepts.md", "faq.md", "report-and-live-page.md"]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```[ ]?(?P<kind>[^\n]*)\n(?P<code>.*?)^```", re.M | re.S)


def blocks(page: Path, language: str) -> Iterator[tuple[str, bool]]:
    """The code blocks of a page in one language, and whether they are marked as slow."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        words = re.findall(r"\w+", found["kind"])
        if language in words[:1]:
            yield found["code"], "slow" in words


def commands(page: Path, *languages: str) -> list[tuple[str, bool]]:
    """The `fedchoir` commands of a page in blocks of these languages, and whether they are slow."""
    lines = [
        (line.strip().removeprefix("$ "), slow)
        for language in languages
        for code, slow in blocks(page, language)
        for line in code.replace("\\\n", " ").splitlines()
    ]
    return [(line, slow) for line, slow in lines if line.startswith("fedchoir ")]


def test_site_builds_without_warning(tmp_path: Path) -> None:
    command = [str(BIN / "mkdocs"), "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    site = tmp_path / "site"
    made = {path.stem for path in (site / "methods").glob("*.html")}
    assert {name.replace("+", "-plus") for name in methods.registry()} <= made
    page = (site / "methods" / "fccl-plus.html").read_text()
    assert "λ of eq. 2: weight of the off-diagonal entries" in page  # an option's description
    assert "Σ_{u≠v} (1 + M_uv)²" in page  # an equation
    results = "".join(path.read_text() for path in [site / "results.html", *(site / "results").rglob("*.html")])
    marked = re.findall(r'<td class="number">(.*?)</td>', results)
    assert any(re.fullmatch(r"\d\d\.\d\d ± \d\.\d\d", cell) for cell in marked)
    assert any(re.fullmatch(r"<strong>\d\d\.\d\d ± \d\.\d\d</strong>", cell) for cell in marked)
    assert not any(re.search(r"[a-z]{4}", re.sub(r"</?strong>", "", cell)) for cell in marked)  # no cell of words
    everything = [path.read_text() for path in site.rglob("*.html")]
    assert not any(re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)', text) for text in everything)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    for line, _ in commands(page, "bash", "console"):
        words = shlex.split(line.split(" #")[0].split(" > ")[0])[1:]
        if words[0] == "--plugin":
            words = words[2:]
        command = group
        while hasattr(command, "commands") and not (command.invoke_without_command and words[0].startswith("--")):
            assert words, line
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        command.make_context(line, words, resilient_parsing=False)  # raises where an option is not known


@pytest.mark.parametrize("name", RUN_AS_WRITTEN)
def test_quick_commands_run_as_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in [line for line, slow in commands(ROOT / "docs" / name, "bash") if not slow]:
        done = CliRunner().invoke(app, shlex.split(line)[1:])  # in this process: torch takes seconds to import
        assert done.exit_code == 0, f"{line}\n{done.output}{done.exception}"
    if name == "index.md":
        assert (tmp_path / "runs" / "report.html").is_file()
        left = {path.name for path in (tmp_path / "runs" / "fccl-plus").iterdir()}
        listed = set(re.findall(r"^\| `([\w.]+)/?` \|", (ROOT / "docs" / name).read_text(), re.M))
        assert listed - {"report.html"} <= left


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for code, _ in blocks(page, "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("name", RUN_AS_WRITTEN)
def test_python_runs_as_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code, slow in blocks(ROOT / "docs" / name, "python"):
        if not slow:
            exec(compile(code, name, "exec"), {"__name__": "docs"})
