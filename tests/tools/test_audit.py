"""The lock file of a deployment: hashes, versions, and what pip-audit reports about it."""

from __future__ import annotations

import json
from pathlib import Path

from tools.audit import CONSTRAINTS, LOCK, audit_problems, lock_problems, requirements


def test_the_lock_file_is_complete_and_agrees_with_the_constraints() -> None:
    assert lock_problems(LOCK.read_text(), CONSTRAINTS.read_text()) == []
    locked = requirements(LOCK.read_text())
    assert {"flwr", "torch", "opacus", "cryptography", "pydantic", "safetensors"} <= set(locked)
    assert "http" + "://" not in LOCK.read_text()
    assert Path("deploy/requirements.lock") == LOCK


def test_a_package_without_a_hash_or_with_another_version_is_named() -> None:
    lock = "a==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nB_c==2.0\n"
    assert requirements(lock) == {"a": ("1.0", 2), "b-c": ("2.0", 0)}
    assert lock_problems(lock, "a==1.0\nb-c==2.1\n") == [
        "b-c has no hash",
        "b-c is 2.0 here and 2.1 in constraints.txt",
    ]
    assert lock_problems("", "") == ["deploy/requirements.lock has no packages"]


def test_reports_of_pip_audit() -> None:
    problem = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    packages = [
        {"name": "a", "version": "1.0", "vulns": [problem]},
        {"name": "b", "version": "2.0", "vulns": []},
        {"name": "c", "skip_reason": "not found"},
    ]
    assert audit_problems(json.dumps({"dependencies": packages})) == (["a 1.0: PYSEC-1, fixed in 1.1"], 2)
