from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy import stats
from tests.fake_results import fake_result, write_comparison

from fedchoir.core.metric_summary import summarise_clients
from fedchoir.core.result import Result
from fedchoir.reporting.difference_tables import (
    MOST_REFERENCES,
    all_differences,
    difference_sheets,
    references,
)
from fedchoir.reporting.page import page_data
from fedchoir.reporting.run_data import read_runs
from fedchoir.reporting.run_groups import rows
from fedchoir.reporting.store import find_results
from fedchoir.reporting.tables import as_text, sheets, terminal_tables
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
SOLO = (40.0, 41.0, 40.5)
FCCL = (45.0, 47.0, 46.0)
FEDMD = (41.0, 40.5, 41.5)


def runs(method: str, values: tuple[float, ...], **more: Any) -> list[Result]:
    return [fake_result(method, seed=s, inter=v, intra=v + 20, **more) for s, v in enumerate(values)]


def three() -> list[Result]:
    return [*runs("solo", SOLO), *runs("fccl", FCCL), *runs("fedmd", FEDMD)]


def lines(results: list[Result], scope: str = "inter", against: str | None = None) -> dict[str, dict[str, str]]:
    made = rows(results)
    group = made[0].group
    sheet = next(s for s in difference_sheets(group, made, references(made, against)[group]) if f"{scope} %" in s.title)
    return {line[0].text: dict(zip(sheet.header, (c.text for c in line), strict=True)) for line in sheet.lines}


def test_differences_to_solo_with_verdicts() -> None:
    found = lines(three())
    low, high = stats.ttest_rel(FCCL, SOLO).confidence_interval(0.95)
    assert found["fccl"] == {
        "method": "fccl", "seeds": "3", "difference": "+5.50", "95 % over seeds": f"{low:+.2f} to {high:+.2f}",
        "verdict": "better", "seeds needed": "–",
    }  # fmt: skip
    assert found["fedmd"]["verdict"] == "cannot be told"
    assert int(found["fedmd"]["seeds needed"]) > 3
    assert set(found) == {"fccl", "fedmd"}


def test_against_another_row() -> None:
    found = lines(three(), against="fccl")
    assert found["solo"]["difference"] == "-5.50"
    assert found["solo"]["verdict"] == "worse"


def test_one_seed_is_told() -> None:
    found = lines([*runs("solo", SOLO[:1]), *runs("fccl", FCCL[:1])])
    assert (found["fccl"]["95 % over seeds"], found["fccl"]["verdict"]) == ("–", "one seed: no interval")


def test_a_label_comes_before_a_method_and_a_short_label_before_a_long_one() -> None:
    slow = [r.model_copy(update={"label": "fccl, slow"}) for r in runs("fccl", FCCL, settings={"public_lr": 0.1})]
    quick = [r.model_copy(update={"label": "quick"}) for r in runs("fccl", FEDMD)]
    made = rows([*runs("solo", SOLO), *slow, *quick])
    group = made[0].group
    assert references(made, "fccl")[group].label == "quick"
    assert references(made, "fccl, slow")[group].label == "fccl, slow"
    assert references(made)[group].label == "solo"


def test_a_row_that_nobody_has_is_an_error_of_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--against: no row is called 'fcll'; there are solo, fccl, fedmd$"):
        references(rows(three()), "fcll")


def test_the_reference_may_have_other_models_on_the_same_data() -> None:
    small = runs("fedavg", (60.0, 61.0, 60.5), models=("simple_cnn",))
    elsewhen = runs("fedavg", (10.0, 10.0, 10.0), models=("simple_cnn",), rounds=3)
    made = rows([*three(), *small, *elsewhen])
    group = next(row.group for row in made if row.method == "fccl")
    found = references(made, "fedavg")
    assert found[group].number("inter") == next(row for row in made if row.results == tuple(small)).number("inter")
    titles = [sheet.title for sheet in sheets(made, references=found)]
    assert any(title.endswith("inter % minus fedavg (simple_cnn)") for title in titles)
    assert group not in references([row for row in made if row.method != "solo"])  # SOLO is only that of the group


def test_without_a_reference_the_table_tells_what_to_do() -> None:
    made = rows([*runs("fccl", FCCL), *runs("fedmd", FEDMD)])
    (sheet,) = sheets(made, references=references(made))
    assert sheet.notes[-1].startswith("no differences: this table has no solo row; --against")
    assert "no differences" not in "".join(sheets(made)[0].notes)  # a sweep does not ask for them


def test_label_skew_has_one_score() -> None:
    many = [
        fake_result(m, "cifar10", seed=s, intra=50.0 + s + k)
        for k, m in enumerate(("solo", "fedavg"))
        for s in range(3)
    ]
    made = rows(many)
    _, found = sheets(made, references=references(made))
    assert found.title.endswith("accuracy % minus solo")


def test_an_unseen_domain_has_its_own_table() -> None:
    def run(method: str, seed: int, value: float) -> Result:
        spans = {"accuracy": [[[48.0, 52.0]] * 4] * 4}
        summary = {"svhn": summarise_clients([value] * 4, ["mnist", "usps", "svhn", "syn"], "accuracy")}
        return fake_result(method, seed=seed, extras={"unseen": summary, "metrics_ci": spans})

    made = rows(
        [run(method, seed, 30.0 + 5 * k + seed) for k, method in enumerate(("solo", "fccl")) for seed in (0, 1)]
    )
    *_, unseen = sheets(made, references=references(made))
    assert unseen.title.endswith("unseen % minus solo")
    half = 8**0.5  # 2 for each row: all clients have the same test samples
    assert [cell.text for cell in unseen.lines[0]][1:] == [
        "2", "+5.00", "+5.00 to +5.00", "better", "–", f"{5 - half:+.2f} to {5 + half:+.2f}",
    ]  # fmt: skip


def test_zero_has_no_minus() -> None:
    found = lines([*runs("solo", SOLO), *runs("fccl", tuple(v - 0.001 for v in SOLO))])
    assert found["fccl"]["difference"] == "+0.00"


def test_many_differences_carry_a_warning() -> None:
    variants = [runs("fccl", FCCL, settings={"public_lr": 0.001 * k}) for k in range(1, 12)]
    made = rows([*runs("solo", SOLO), *(r for each in variants for r in each)])
    *_, last = sheets(made, references=references(made))
    assert any(note.startswith("11 differences: by chance") for note in last.notes)


def test_terminal_csv_and_page_have_the_same_numbers(tmp_path: Path) -> None:
    write_comparison(tmp_path, rounds=4)
    made = rows(find_results([tmp_path]))
    compared = references(made)
    read = {line["label"]: line for line in csv.DictReader(io.StringIO(as_text(made, "csv", references=compared)))}
    (group,) = page_data(read_runs([tmp_path]))["groups"]
    labels = [row["label"] for row in group["rows"]]
    assert labels[group["differences"]["first"]] == "solo"
    assert group["text"]["csv"] == as_text(made, "csv", references=compared)
    for scope in ("intra", "inter"):
        shown = group["differences"][scope][group["differences"]["first"]]
        for label, found in zip(labels, shown, strict=True):
            assert (found is None) == (label == "solo")
            if found is None:
                assert read[label]["against"] == ""
                continue
            line = read[label]
            for name in ("difference", "low", "high"):
                assert float(line[f"{scope}_{name}"]) == pytest.approx(found[name], rel=1e-6)
            text = lines(find_results([tmp_path]), scope)[label]
            assert text["95 % over seeds"] == f"{found['low']:+.2f} to {found['high']:+.2f}"
            assert (text["verdict"], line[f"{scope}_verdict"]) == (found["verdict"], found["verdict"])
            assert line[f"{scope}_seeds_needed"] == found["seeds_needed"]


def test_a_page_has_every_pair_or_for_many_rows_one_reference() -> None:
    few = all_differences(rows(three()))
    assert [[found is None for found in column] for column in few["inter"]] == [
        [k == j for k in range(3)] for j in range(3)
    ]
    a, b = few["inter"][0][1], few["inter"][1][0]
    assert a["difference"] == pytest.approx(-b["difference"])
    variants = [fake_result("fccl", settings={"public_lr": 0.001 * k}) for k in range(1, MOST_REFERENCES + 2)]
    many = all_differences(rows([*variants, *runs("solo", SOLO)]))
    assert [column is None for column in many["inter"]].count(False) == 1
    assert many["inter"][many["first"]] is not None


def test_eighty_columns_show_every_number() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    spans = {"metrics_ci": {"accuracy": [[[48.0, 52.0]] * 4] * 4}}
    made = rows([*runs("solo", SOLO, extras=spans), *runs("fccl", FCCL, extras=spans), *runs("fedmd", FEDMD)])
    for table in terminal_tables(made, references=references(made)):
        console.print(table)
    text = " ".join(console.export_text().split())
    for word in ("+5.50", "better", "cannot be", "over test samples"):
        assert word in text


def test_the_documentation_shows_kept_runs_and_agrees_with_the_readme() -> None:
    made = rows(find_results([ROOT / "results" / "digits"]))
    printed = [
        ["".join(cell.text) for cell in line] for s in sheets(made, references=references(made)) for line in s.lines
    ]
    page = (ROOT / "docs" / "report-and-live-page.md").read_text()
    table = re.search(r"inter % minus solo\n.*?\n─+\n(.*?)```", page, re.S)
    assert table
    shown = [re.split(r"\s{2,}", line) for line in table[1].splitlines()]
    assert len(shown) == 6
    assert all(line in printed for line in shown)
    (fccl_plus,) = [line for line in shown if line[0] == "fccl+"]
    low, high = (f"{float(v):+.1f}" for v in fccl_plus[3].split(" to "))
    stated = re.search(r"\| FCCL\+ − SOLO \| (\S+) \((\S+) to (\S+)\)", (ROOT / "README.md").read_text())
    assert stated
    assert stated.groups()[:2] == (f"{float(fccl_plus[2]):+.1f}", low)
    assert abs(float(stated[3]) - float(high)) < 0.11  # the table is rounded twice
