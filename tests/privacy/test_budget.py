"""The privacy budget of a site: composed over runs, append-only, enforced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedchoir.privacy.budget import PrivacyBudget, Release, epsilon_of
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.errors import UsageError

STEPS = Release(noise=1.0, rate=0.05, steps=50)


def test_releases_of_all_runs_are_composed(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path / "budget.jsonl", delta=1e-5)
    assert budget.epsilon() == 0
    first = budget.spend(STEPS, run="a", round=0)
    second = PrivacyBudget(tmp_path / "budget.jsonl", delta=1e-5).spend(STEPS, run="b", round=0)
    assert first == pytest.approx(epsilon(1.0, 0.05, 50, 1e-5))
    assert second == pytest.approx(epsilon(1.0, 0.05, 100, 1e-5))
    other = Release(noise=2.0, rate=0.1, steps=10)
    assert epsilon_of([STEPS, STEPS, other], 1e-5) > second
    assert [json.loads(line)["run"] for line in (tmp_path / "budget.jsonl").read_text().splitlines()] == ["a", "b"]
    assert (tmp_path / "budget.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_release_beyond_the_limit_is_refused_and_not_recorded(tmp_path: Path) -> None:
    budget = PrivacyBudget(tmp_path / "budget.jsonl", delta=1e-5, limit=3.0)
    spent = budget.spend(STEPS)
    with pytest.raises(UsageError, match=r"would raise ε from 2\.\d\d to 3\.\d\d .* budget is 3"):
        budget.spend(STEPS)
    assert budget.epsilon() == pytest.approx(spent)
    budget.spend(Release(noise=20.0, rate=0.05, steps=1))  # a smaller one still fits


@pytest.mark.parametrize("change", ["edit", "drop first", "garbage"])
def test_a_changed_file_is_noticed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "budget.jsonl"
    budget = PrivacyBudget(path, delta=1e-5)
    for _ in range(3):
        budget.spend(STEPS)
    lines = path.read_text().splitlines()
    if change == "edit":
        lines[1] = lines[1].replace('"steps": 50', '"steps": 1')
    elif change == "drop first":
        lines = lines[1:]
    else:
        lines[0] = "{"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match="privacy budget was changed or cut"):
        budget.spend(STEPS)
