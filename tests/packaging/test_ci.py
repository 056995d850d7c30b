"""The workflow of CI and the hooks of pre-commit run what the Makefile runs, and their own validators accept them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
BIN = Path(sys.executable).parent


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, with $(BIN) as .venv/bin."""
    text = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", text, re.M)
    assert found is not None, f"there is no target {target}"
    return [line.strip() for line in found[1].splitlines()]


def jobs() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(WORKFLOW.read_text())["jobs"])


def runs(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_jobs_call_the_makefile() -> None:
    targets = {name: re.findall(r"^\s*make ([\w-]+)", runs(job), re.M) for name, job in jobs().items()}
    assert targets == {
        "lint": ["lint"], "test": ["test"], "e2e": ["test-e2e"], "docs": ["docs"], "publish-docs": ["docs-version"],
    }  # fmt: skip
    assert all(recipe(target) for names in targets.values() for target in names)


def test_actions_are_pinned_and_only_publishing_may_write() -> None:
    content = yaml.safe_load(WORKFLOW.read_text())
    assert content["permissions"] == {"contents": "read"}
    for name, job in jobs().items():
        assert job.get("permissions", {}) == ({"contents": "write"} if name == "publish-docs" else {})
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])


def test_hooks_are_the_steps_of_make_lint() -> None:
    hooks = yaml.safe_load(HOOKS.read_text())["repos"][0]["hooks"]
    at_commit = [hook["entry"] for hook in hooks if "stages" not in hook]
    assert at_commit == [step for step in recipe("lint") if "tools.audit" not in step]  # the audit needs the network
    assert [hook["entry"] for hook in hooks if "stages" in hook] == ["make test"]


def test_validators_accept_them() -> None:
    for command in (
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)],
        ["pre-commit", "validate-config", str(HOOKS)],
    ):
        done = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
