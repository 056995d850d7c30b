from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fake_results import fake_result

from fedchoir.core.result import Result
from fedchoir.reporting.run_groups import rows
from fedchoir.reporting.tables import View, as_text, sheets, terminal_tables


def published(method: str, *keys: str, **values: Any) -> Result:
    """A result that belongs to rows of published tables."""
    return fake_result(method, **values, extras={"published": [f"{key}:{method}" for key in keys]})


def three_methods() -> list[Result]:
    tables = ("fccl+/table8", "fccl+/table9")
    plus = [published("fccl+", *tables, seed=s, intra=90.0 + s, inter=48.0 + 2 * s) for s in range(3)]
    solo, fedmd = (
        published("solo", *tables, intra=73.0, inter=25.0),
        published("fedmd", *tables, intra=80.0, inter=26.0),
    )
    return [solo, *plus, fedmd]


def cells(results: list[Result], view: View = "accuracy", target: float | None = None) -> dict[str, dict[str, str]]:
    """Label → header → text of the first sheet; a header that occurs twice gets a number."""
    sheet = sheets(rows(results), view, target)[0]
    names = [f"{name}{'' if sheet.header.index(name) == i else ' 2'}" for i, name in enumerate(sheet.header)]
    return {line[0].text.strip(): dict(zip(names, (c.text for c in line), strict=True)) for line in sheet.lines}


def test_accuracies_with_delta_and_published_numbers() -> None:
    table = cells(three_methods())
    assert table["fccl+"]["inter %"] == "50.00 ± 2.00"
    assert table["fccl+"]["Δ solo 2"] == "+25.00"
    assert table["solo"]["Δ solo"] == "–"
    assert table["fccl+"]["paper (ours −) 2"] == "50.49 (-0.49)"
    assert table["fedmd"]["paper (ours −)"] == "80.70 (-0.70)"


def test_best_and_second_are_marked() -> None:
    (sheet,) = sheets(rows(three_methods()))
    places = {line[0].text: [c.place for c in line if c.place is not None] for line in sheet.lines}
    assert places == {"fccl+": [0, 0], "fedmd": [1, 1], "solo": [2, 2]}
    assert "paper: fccl+/table8, fccl+/table9" in sheet.notes


def test_empty_columns_are_left_out() -> None:
    (sheet,) = sheets(rows([fake_result("fedavg", "cifar10", settings={"beta": 0.3})]))
    assert sheet.header == ("method", "seeds", "accuracy %", "worst", "spread", "bytes / round", "seconds")


def test_a_difference_that_all_rows_share_is_listed_once() -> None:
    key = "fccl+/table8"
    results = [published(method, key, profile="paper", rounds=2) for method in ("fedmd", "feddf")]
    results.append(published("fccl", key, profile="paper", rounds=2, settings={"local_epochs": 3}))
    (sheet,) = sheets(rows(results))
    prefix = "differs from the paper (its value in brackets), "
    assert [note.removeprefix(prefix) for note in sheet.notes if note.startswith(prefix)] == [
        "all rows: rounds 2 (40)",
        "fccl paper: local_epochs 3 (20)",
    ]


def test_notes_hold_doubts_and_remarks_on_the_data() -> None:
    result = published("feddf", "fccl+/table9").model_copy(update={"notes": ["syn: a re-creation"]})
    (sheet,) = sheets(rows([result]))
    assert any("the columns average 82.89" in note for note in sheet.notes)
    assert sheet.notes[-1] == "data: syn: a re-creation"


def test_a_published_number_for_other_data_is_not_subtracted() -> None:
    (sheet,) = sheets(rows([published("fccl+", "fccl+/table8", scenario="digits-lite")]))
    assert "50.49" in [cell.text for cell in sheet.lines[0]]
    assert any("for orientation only" in note for note in sheet.notes)


def test_each_client_with_the_papers_line_below() -> None:
    intra, inter = sheets(rows(three_methods()), "clients")
    assert inter.header == ("method", "mnist →", "usps →", "svhn →", "syn →", "average", "Δ solo")
    texts = [[cell.text for cell in line] for line in inter.lines]
    assert texts[2][1] == "48.50 ± 2.00"
    assert texts[3] == ["  fccl+/table8", "40.13", "50.53", "48.31", "63.00", "50.49", "ours -0.49"]
    assert [line[1].place for line in intra.lines] == [2, None, 0, None, 1, None]


def test_rounds_to_a_target(tmp_path: Path) -> None:
    events = [{"round": r, "intra_avg": v} for r, v in enumerate([50.0, 76.0, 77.0])]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    extras = {"folder": str(tmp_path), "published": ["fedct/table6:fedct beta=0.1"]}
    result = fake_result("fedct", "cifar10", settings={"beta": 0.1}, extras=extras)
    assert cells([result])["fedct"]["rounds"] == "2 to 76 %"
    assert cells([result])["fedct"]["interactions"] == "4 to 76 % (paper 28)"  # each round has one exchange
    assert cells([result], target=79)["fedct"]["rounds"] == "not to 79 %"


def test_cost_view() -> None:
    line = cells([fake_result("fccl+", rounds=4)], "cost")["fccl+"]
    assert (line["up"], line["down"], line["msgs"], line["models"]) == ("2.0 KiB", "1000 B", "4", "–")
    assert (line["local s"], line["total s"], line["added s"]) == ("0.75", "1.50", "+0.00")


def test_csv_has_all_numbers() -> None:
    read = list(csv.DictReader(io.StringIO(as_text(rows(three_methods()), "csv", "clients"))))
    ours = next(line for line in read if line["label"] == "fccl+")
    assert (float(ours["inter"]), float(ours["inter_sd"]), float(ours["inter_minus_solo"])) == (50.0, 2.0, 25.0)
    assert float(ours["inter_minus_paper"]) == pytest.approx(50 - 50.49)
    assert float(ours["inter_mnist"]) == 48.5
    assert ours["inter_paper_table"] == "fccl+/table8"
    assert {"bytes_up", "models_held", "seconds_local"} <= set(ours)


@pytest.mark.parametrize(("style", "start"), [("md", "**digits"), ("latex", "% digits")])
def test_text_formats_have_one_table_per_group(style: str, start: str) -> None:
    text = as_text(rows([*three_methods(), fake_result("solo", rounds=3)]), style)
    assert text.count(start) == 2


def test_a_terminal_of_eighty_columns_shows_every_number() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    few = fake_result("fccl+", settings={"private": (0.01,)})
    for table in terminal_tables(rows([published("solo", "fccl+/table8"), few, published("fccl+", "fccl+/table8")])):
        console.print(table)
    text = console.export_text()
    for word in ("40.00", "60.00", "50.49", "(-10.49)", "private=[0.01]"):
        assert word in text
