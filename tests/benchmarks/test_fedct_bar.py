"""The tuning of FedCT's comparison: the whole grids are run, and constants at an edge are reported."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

import fedct_bar


def test_every_value_of_every_grid_is_a_candidate_and_edges_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[dict[str, float]] = []

    def choose(self: Any, method: str, fixed: dict[str, Any], candidates: list[dict[str, float]]) -> dict[str, float]:
        tried.extend(candidates)
        return min(candidates, key=lambda c: (c["tau2"], abs(c["kappa"] - 1.0)))  # an edge of τ₂, the middle of κ

    monkeypatch.setattr(fedct_bar.Comparison, "choose", choose)
    args = argparse.Namespace(out="unused", private=0, set=["momentum=0.9", "private_augment=crop-flip"])
    comparison = fedct_bar.Comparison(args)
    assert comparison.common["momentum"] == 0.9
    best = comparison.tune("fedct", {})
    for grid in fedct_bar.GRIDS["fedct"]:
        for name, values in grid.items():
            assert {c[name] for c in tried if name in c} == set(values)
    assert {c["tau2"] for c in tried} >= {0.5, 0.05}  # the paper's grid
    assert (best["kappa"], best["tau2"]) == (1.0, 0.02)
    printed = capsys.readouterr().out
    assert "tau2 = 0.02 is at the edge of its grid (smallest of 0.02, 0.05, 0.1, 0.5)" in printed
    assert "kappa = 1.0 is at the edge" not in printed
