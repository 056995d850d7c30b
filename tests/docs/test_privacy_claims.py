"""Every claim about secure aggregation names tests, and these tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEFAULT = "tests/core/test_secure_attacks.py"
NAMED = re.compile(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`")


def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_named_tests_exist_and_every_attack_is_named() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    claims = page.partition("### What is claimed")[2].partition("### What is not claimed")[0]
    rows = [line for line in claims.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    assert len(rows) > 10
    assert all(NAMED.search(row) for row in rows)
    named = [(file or DEFAULT, test) for file, test in NAMED.findall(claims)]
    assert [(file, test) for file, test in named if test not in functions_in(file)] == []
    attacks = {name for name in functions_in(DEFAULT) if name.startswith("test_")}
    assert attacks <= {test for file, test in named if file == DEFAULT}
