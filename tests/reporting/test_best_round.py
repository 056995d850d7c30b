from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fake_results import fake_result, write_comparison
from tests.helpers import events

from fedchoir.core.result import Result
from fedchoir.reporting.best_round import best_test_round, habit_fields, habit_of, habit_sheet
from fedchoir.reporting.run_groups import Number, rows
from fedchoir.reporting.store import extra, find_results

RESULTS = Path(__file__).parents[2] / "results"


def write_events(folder: Path, found: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"round": r, **event}) for r, event in enumerate(found)]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def with_rounds(folder: Path, inter: list[float | None], **more: Any) -> Result:
    """A run with these inter-domain accuracies; its result is the mean of the last three, as always."""
    folder.mkdir()
    write_events(folder, [{"intra_avg": v, "inter_avg": v} for v in inter])
    last = float(np.mean([v for v in inter if v is not None][-3:]))
    return fake_result("fccl", intra=last, inter=last, extras={"folder": str(folder)}, **more)


def test_the_best_round_of_each_seed(tmp_path: Path) -> None:
    first = with_rounds(tmp_path / "0", [30.0, 48.0, None, 40.0, 41.0, 42.0], seed=0)
    second = with_rounds(tmp_path / "1", [30.0, 31.0, 32.0, 33.0, 34.0, 35.0], seed=1)
    (row,) = rows([first, second])
    found = habit_of(row, "inter")
    assert found is not None
    assert found.ours == Number(37.5, pytest.approx(np.std([41, 34], ddof=1)), 2)
    assert found.best.mean == (48 + 35) / 2
    assert found.worth == Number(4.0, pytest.approx(np.std([7, 1], ddof=1)), 2)
    assert habit_fields(row)["inter_best_round_worth"] == 4.0


def test_the_lowest_loss_is_the_best(tmp_path: Path) -> None:
    heads = [{"metric": "log_loss", "intra_avg": v, "inter_avg": v + 1} for v in (0.9, 0.4, 0.6)]
    write_events(tmp_path, [{"intra_avg": 50.0, "inter_avg": 40.0, "headline": head} for head in heads])
    result = fake_result("fccl", extras={"folder": str(tmp_path), "metric": "log_loss"})
    assert best_test_round(result, "log_loss", "inter") == pytest.approx(1.4)
    assert best_test_round(result, "accuracy", "intra") == 50.0
    assert best_test_round(result, "auroc", "intra") is None


def test_table_and_the_sentence_on_validity(tmp_path: Path) -> None:
    write_comparison(tmp_path, rounds=8)
    made = rows(find_results([tmp_path]))
    sheet = habit_sheet(made[0].group, made)
    assert sheet.header == ("method", "seeds", "intra %", "best round", "worth", "inter %", "best round", "worth")
    assert any(note.startswith("The best test round is not a valid result") for note in sheet.notes)
    for row, line in zip(made, sheet.lines, strict=True):
        assert line[5].text == str(row.number("inter"))
        best = [max(e["inter_avg"] for e in events(Path(extra(r, "folder")))) for r in row.results]
        assert line[6].text.startswith(f"{np.mean(best):.2f} ± ")
        assert line[7].text.startswith("+")


def test_runs_without_rounds_are_named() -> None:
    made = rows([fake_result("fccl"), fake_result("solo")])
    sheet = habit_sheet(made[0].group, made)
    assert [cell.text for cell in sheet.lines[0]][3:5] == ["–", "–"]
    assert "inter: no rounds are kept of solo, fccl (events.jsonl)" in sheet.notes
    assert not any(note.startswith("worth of the habit") for note in sheet.notes)


def test_the_best_round_is_never_worse_in_all_kept_runs() -> None:
    """A maximum over rounds is at least the mean of three of them."""
    seen = 0
    for row in rows(find_results([RESULTS / "digits-lite", RESULTS / "heart"])):
        for scope in ("intra", "inter"):
            if found := habit_of(row, scope):
                assert found.worth.mean >= -1e-9, row.label
                seen += 1
    assert seen > 20
