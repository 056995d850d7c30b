from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from tests.docs.markdown_tables import Table, tables_of
from tools.prose_numbers import Numbers, digits, interval

from fedchoir.reporting.store import events_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCENARIOS = ("digits", "office-caltech", "digits-lite")
AVERAGED = "fedavg, one small model, affine + recolor"


def label(name: str) -> str:
    """The label of a row in the store: ``FCCL+, affine + recolor`` is ``fccl+, affine + recolor``."""
    method, comma, variant = name.partition(",")
    return f"{method.lower()}{comma}{variant}"


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    return Numbers(RESULTS)


def table(page: str, column: str) -> Table:
    """The one table of a page with this column."""
    found = [each for each in tables_of(ROOT / page) if column in each.header]
    assert len(found) == 1, [each.line for each in found]
    return found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_rows_have_as_many_cells_as_the_header(page: Path) -> None:
    for found in tables_of(page):
        assert found.rows, f"{page.name}, line {found.line}: a table without rows"
        wrong = [row for row in found.rows if len(row) != len(found.header)]
        assert not wrong, f"{page.name}, table at line {found.line} has {len(found.header)} columns: {wrong[0]}"


def test_a_row_with_a_missing_cell_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a | b |\n|---|---|\n| 1 | 2 |\n| 3 |\n\n```\n| no | table |\n|---|---|\n```\n")
    (found,) = tables_of(page)
    assert [len(row) for row in found.rows] == [2, 1]


def test_accuracies_in_the_readme(numbers: Numbers) -> None:
    found = table("README.md", "method")
    assert {"SOLO", "FCCL+", "Choir-v1, shared model", "FedAvg, one small model"} <= set(found.column("method"))
    for name, *row in found.rows:
        expected = [digits(numbers.get(metric, s, label(name))) for s in SCENARIOS for metric in ("intra", "inter")]
        assert row == expected, name


def test_differences_in_the_readme(numbers: Numbers) -> None:
    found = table("README.md", "difference")
    assert len(found.rows) >= 5
    for name, *row in found.rows:
        one, two = map(label, name.split(" − "))
        assert row == [interval(numbers.get("inter", s, one) - numbers.get("inter", s, two)) for s in SCENARIOS], name


def both(numbers: Numbers, section: str, row: str) -> str:
    return f"{digits(numbers.get('intra', section, row))} / {digits(numbers.get('inter', section, row))}"


def test_summary_of_choir(numbers: Numbers) -> None:
    labels = ("fccl+", "fccl+, affine + recolor", "choir-v1", "choir-v1, shared model")
    found = tables_of(ROOT / "docs" / "choir-v1.md")[0]
    assert found.header[1:] == ["Digits", "Office-Caltech"]
    for (name, *row), known in zip(found.rows, labels, strict=True):
        assert row == [both(numbers, section, known) for section in ("digits", "office-caltech")], name


def test_shared_models_of_choir(numbers: Numbers) -> None:
    found = table("docs/choir-v1.md", "Choir with the small model as shared model")
    labels = (
        "choir-v1", "solo, one small model, affine + recolor", AVERAGED, f"{AVERAGED}, locally fine-tuned",
        "choir-v1, shared model",
    )  # fmt: skip
    assert found.column("") == ["Digits", "Office-Caltech", "digits-lite"]
    for section, (name, *row) in zip(SCENARIOS, found.rows, strict=True):
        assert row == [both(numbers, section, known) for known in labels], name


CHOIR = {
    "Office-Caltech, the papers' models, 40 rounds": ("choir-office/choir", "office-caltech/fccl+, affine + recolor"),
    "Digits, narrow models, 10 rounds": ("digits-narrow/choir", "digits-narrow/fccl+"),
    "Digits, narrow models, 20 rounds": ("digits-narrow-20/choir", "digits-narrow-20/fccl+"),
    "Office-Caltech, narrow models, 10 rounds": ("office-narrow/choir", "office-narrow/fccl+"),
    "digits-lite, 8 rounds": ("digits-lite/choir", "digits-lite/fccl+, affine + recolor"),
    "amazon-reviews: texts, 5 rounds": ("reviews/choir", "reviews/fccl+"),
    "UCI HAR: series, 10 rounds": ("choir-har/choir", "choir-har/fccl+"),
    "heart: tables, 15 rounds": ("choir-heart/choir", "choir-heart/fccl+"),
}


def test_choir_in_the_readme(numbers: Numbers) -> None:
    found = table("README.md", "bytes, of FCCL+'s")
    assert found.column("Choir − FCCL+, same augmentation") == list(CHOIR)
    for name, *row in found.rows:
        choir, fccl_plus = CHOIR[name]
        apart = [numbers.get(metric, "", choir) - numbers.get(metric, "", fccl_plus) for metric in ("intra", "inter")]
        assert row[:3] == [str(len(list(apart[0]))), *map(interval, apart)], name
        part = 100 * mean(numbers.bytes("", choir) / numbers.bytes("", fccl_plus))
        assert row[3] == (f"{part:.0f} %" if part >= 1 else f"{part:.1f} %"), name


# -- docs/cross-training.md --------------------------------------------------------------------------------------------


def visits(exchanges: list[list[list[int]]]) -> tuple[float, float]:
    """How many clients a model visits, and the share of its visits to the most frequent one, averaged over models."""
    places: dict[int, Counter[int]] = defaultdict(Counter)
    for model, place in (pair for exchange in exchanges for pair in exchange):
        places[model][place] += 1
    return mean(map(len, places.values())), mean(max(c.values()) / c.total() for c in places.values())


def test_wide_network_of_cross_training(numbers: Numbers) -> None:
    found = table("docs/cross-training.md", "β = 0.5")
    labels = {
        "FedExg": "fedexg", "FedCT": "fedct", "FedCT, models sent at random": "random",
        "FedCT, sent where least consistent": "inconsistency", "FedCT: assignment alone": "CAKB",
    }  # fmt: skip
    assert found.column("") == list(labels)
    for name, *row in found.rows:
        expected = []
        for beta in ("0.5", "0.1"):
            label = f"{labels[name]} beta={beta}"
            gain = numbers.get("intra", "fedct", label) - numbers.get("intra", "fedct", f"fedavg beta={beta}")
            rounds = [
                [e["measures"].get("exchanges", []) for e in events_of(r)] for r in numbers.row("fedct", label).results
            ]
            went = [visits([exchange for each in run for exchange in each]) for run in rounds]
            clients, share = (mean(values) for values in zip(*went, strict=True))
            expected += [f"{digits(np.min(gain))} to {digits(np.max(gain))}", f"{clients:.1f}", f"{100 * share:.0f} %"]
        assert row == expected, name


def test_narrow_network_of_cross_training(numbers: Numbers) -> None:
    found = table("docs/cross-training.md", "seeds 0 / 1 / 2")
    summary = json.loads((RESULTS / "fedct-bar" / "summary.json").read_text())["rows"]
    labels = {
        "FedAvg": ("fedavg", "fedavg"), "FedExg": ("fedexg", "fedexg"), "FedCT": ("fedct", "fedct"),
        "FedCT: assignment alone": ("fedct, assignment alone", "fedct-assignment"),
        "FedCT: assignment + APCL": ("fedct, assignment + APCL", "fedct-apcl"),
        "FedCT: assignment + MFA": ("fedct, assignment + MFA", "fedct-mfa"),
    }  # fmt: skip
    assert found.column("method") == list(labels)
    for name, *row in found.rows:
        label, key = labels[name]
        seeds = numbers.get("intra", "fedct-bar", label)
        assert row[0] == f"{mean(seeds):.1f} ± {stdev(seeds):.1f}"
        assert row[1] == " / ".join(f"{value:.1f}" for value in seeds)
        assert row[2:6] == [f"{summary[key]['curve'][number - 1]:.1f}" for number in (4, 8, 12, 25)], name
        assert row[6:] == visited(summary[key]["visits"]), name


def visited(seeds: list[dict[str, float] | None]) -> list[str]:
    known = [each for each in seeds if each]
    if not known:
        return ["–", "–"]
    return [f"{mean(v['places'] for v in known):.1f}", f"{100 * mean(v['favourite'] for v in known):.0f} %"]


def test_pages_have_a_statement_of_purpose() -> None:
    """The first paragraph of a generated results page tells the reader what it is for."""
    for page in [ROOT / "docs" / "results.md", *(ROOT / "docs" / "results").rglob("*.md")]:
        title, paragraph = page.read_text().split("\n\n")[:2]
        assert re.match(r"# \S", title)
        assert paragraph.startswith("After reading this"), page
