"""Check the packages of a deployment: hashes in the lock file, agreement with constraints.txt, known vulnerabilities.

    python -m tools.audit [--strict]

Vulnerabilities come from the Python advisory database by pip-audit. Without a connection to it nothing is known about
them: the output says NOT AUDITED, and ``--strict`` makes that an error.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCK, CONSTRAINTS = Path("deploy/requirements.lock"), Path("constraints.txt")
PIP_AUDIT = "pip-audit==2.9.0"
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*?)(?=^\S|\Z)", re.M | re.S)


def requirements(text: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of every package."""
    found = REQUIREMENT.finditer(text)
    return {_plain(match[1]): (match[2], match[3].count("--hash=sha256:")) for match in found}


def lock_problems(lock: str, constraints: str) -> list[str]:
    """What is wrong with the lock file itself. Needs no connection."""
    locked, pinned = requirements(lock), requirements(constraints)
    problems = [f"{name} has no hash" for name, (_, hashes) in locked.items() if not hashes]
    for name, (version, _) in locked.items():
        if name in pinned and pinned[name][0] != version:
            problems.append(f"{name} is {version} here and {pinned[name][0]} in {CONSTRAINTS}")
    return problems if locked else [f"{LOCK} has no packages"]


def audit_problems(report: str) -> tuple[list[str], int]:
    """Known vulnerabilities in pip-audit's report, and how many packages it could check."""
    packages = json.loads(report)["dependencies"]
    checked = [package for package in packages if "skip_reason" not in package]
    return [
        f"{package['name']} {package['version']}: {problem['id']}, fixed in {', '.join(problem['fix_versions']) or '-'}"
        for package in checked
        for problem in package["vulns"]
    ], len(checked)


def main(arguments: Sequence[str]) -> int:
    lock = LOCK.read_text()
    problems = lock_problems(lock, CONSTRAINTS.read_text())
    print(f"{LOCK}: {len(requirements(lock))} packages with hashes")
    command = ["uv", "tool", "run", "--quiet", "--from", PIP_AUDIT, "pip-audit"]
    command += [
        "--requirement",
        str(LOCK),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        vulnerable, checked = audit_problems(done.stdout)
    except ValueError:
        vulnerable, checked = [], 0
    if checked == len(requirements(lock)):
        print(f"{checked} packages compared with the advisory database")
    else:
        print(f"NOT AUDITED: {len(requirements(lock)) - checked} packages: pip-audit or its database cannot be reached")
        problems += ["not audited"] if "--strict" in arguments else []
    for problem in [*problems, *vulnerable]:
        print(f"audit: {problem}", file=sys.stderr)
    return int(bool(problems or vulnerable))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
