from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from tools.prose_numbers import BySeed, Numbers, bounds, interval, verdict

from fedchoir.reporting.store import read_records, unpack_events
from fedchoir.utils.errors import UsageError

RESULTS = Path(__file__).parents[2] / "results"
T = 4.302652729911275  # Student's t, 97.5 %, two degrees of freedom


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    return Numbers(RESULTS)


def records(label: str, section: str = "digits") -> list[dict[str, Any]]:
    return [record for record in read_records(RESULTS / section / "runs.jsonl") if record["label"] == label]


def test_means_differences_and_intervals(numbers: Numbers) -> None:
    choir, fccl = ([run["inter_avg"] for run in records(label)] for label in ("choir-v1", "fccl+"))
    apart = [a - b for a, b in zip(choir, fccl, strict=True)]
    half = T * stdev(apart) / 3**0.5
    said = numbers.render('{{ inter("choir-v1") }} {{ (inter("choir-v1") - inter("fccl+")) | interval }}', "digits")
    assert said == f"{mean(choir):.1f} {mean(apart):+.1f} ({mean(apart) - half:+.1f} to {mean(apart) + half:+.1f})"
    assert numbers.render('{{ inter("choir-v1") | digits(2) }}', "digits") == f"{mean(choir):.2f}"
    assert numbers.render('{{ (inter("fccl+") - inter("choir-v1")) | signed }}', "digits") == f"−{mean(apart):.1f}"


def test_rows_with_different_seeds_are_compared_on_those_that_both_have() -> None:
    more, fewer = BySeed({4: 9.0, 1: 5.0, 0: 3.0}), BySeed({0: 1.0, 1: 2.0, 2: 50.0})
    assert list(more - fewer) == [2.0, 3.0]
    assert list(more / fewer) == [3.0, 2.5]
    assert list(more) == [3.0, 5.0, 9.0]
    with pytest.raises(UsageError, match="no seed in common"):
        _ = more - BySeed({7: 1.0})


def test_arithmetic_with_numbers_and_rows_keeps_the_seeds() -> None:
    more, fewer = BySeed({0: 3.0, 1: 5.0, 4: 9.0}), BySeed({1: 2.0, 4: 50.0})
    assert (10 - more).values == {0: 7.0, 1: 5.0, 4: 1.0}
    assert (more + fewer).values == {1: 7.0, 4: 59.0}
    assert (1 + more).values == (more + 1).values == {0: 4.0, 1: 6.0, 4: 10.0}
    assert (2 * more).values == (more * 2).values == {0: 6.0, 1: 10.0, 4: 18.0}
    assert (45 / more).values == {0: 15.0, 1: 9.0, 4: 5.0}
    assert (-more).values == {0: -3.0, 1: -5.0, 4: -9.0}
    assert ((more - 1) - (fewer - 1)).values == {1: 3.0, 4: -41.0}
    assert ((2 * more - fewer) / 2).values == {1: 4.0, 4: -16.0}


def test_rows_are_compared_by_their_means_over_the_seeds_that_both_have() -> None:
    more, fewer = BySeed({0: 3.0, 1: 5.0, 4: 9.0}), BySeed({1: 4.0, 4: 6.0, 5: 100.0})
    assert more > fewer
    assert more >= fewer
    assert fewer < more
    assert fewer <= more
    assert not more < fewer
    assert 5 < more < 6
    assert more >= BySeed({1: 5.0})
    assert not more > BySeed({1: 5.0})


def test_a_template_with_all_operations(numbers: Numbers) -> None:
    choir, fccl = (mean(run["inter_avg"] for run in records(label)) for label in ("choir-v1", "fccl+"))
    text = """{{ 100 - inter("fccl+") }} {{ (inter("fccl+") + inter("choir-v1")) / 2 }} {{ inter("fccl+") * 2 }}
{% if inter("choir-v1") > inter("fccl+") %}{{ (inter("fccl+", paper=true) - inter("fccl+")) | signed }}{% endif %}"""
    assert choir > fccl
    expected = f"{100 - fccl:.1f} {(fccl + choir) / 2:.1f} {fccl * 2:.1f}\n{50.49 - fccl:+.1f}"
    assert numbers.render(text, "digits") == expected


@pytest.mark.parametrize("tell", [interval, verdict])
@pytest.mark.parametrize("values", [BySeed({1: 5.0, 2: 6.0}) - BySeed({2: 5.0}), np.array([1.0]), 1.0])
def test_one_seed_has_no_interval(tell: Any, values: Any) -> None:
    with pytest.raises(UsageError, match=r"^an interval needs two seeds or more that all rows have; there is one$"):
        tell(values)


def test_one_client_and_one_round(numbers: Numbers) -> None:
    runs = records("fccl+")
    usps = [run["accuracy"][1] for run in runs]
    assert numbers.render('{{ intra("fccl+", client="usps") }}', "digits") == f"{mean(row[1] for row in usps):.1f}"
    others = mean(mean(row[:1] + row[2:]) for row in usps)
    assert numbers.render('{{ inter("fccl+", client="usps") }}', "digits") == f"{others:.1f}"
    tenth = [next(e for e in unpack_events(run["events"]) if e["round"] == 9) for run in runs]
    said = numbers.render('{{ intra("fccl+", round=10) }} {{ intra("fccl+", client="mnist", round=10) }}', "digits")
    assert said == f"{mean(e['intra_avg'] for e in tenth):.1f} {mean(e['accuracy'][0][0] for e in tenth):.1f}"


def test_published_numbers_and_rows_of_other_sections(numbers: Numbers) -> None:
    assert numbers.render('{{ inter("fccl+", paper=true) }} {{ intra("fccl+", paper=true) }}', "digits") == "50.5 90.6"
    assert numbers.render('{{ inter("fccl+", client="usps", paper=true) }}', "digits") == "50.5"
    gap = mean(run["inter_avg"] for run in records("fccl+")) - 50.49
    assert (
        numbers.render('{{ (inter("digits/fccl+") - inter("digits/fccl+", paper=true)) | signed }}') == f"−{-gap:.1f}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{{ inter("chior") }}', "digits: no rows are called 'chior' in digits; there are .*choir"),
        ('{{ inter("choir-v1", paper=true) }}', "no paper prints inter for choir"),
        ('{{ inter("choir-v1", round=11) }}', "digits: 11"),
        ('{{ inter("choir-v1", client="mars") }}', "digits: .*mars"),
        ("{{ outer }}", "digits: 'outer' is undefined"),
        ("{{ inter(", "digits: "),
        ('{{ inter("fccl+") + "x" }}', "digits: unsupported operand"),
        ('{{ inter("fccl+", sead=1) }}', "digits: .*'sead'"),
        ('{{ inter("fccl+") / 0 }}', "digits: .*zero"),
        ("{{ verdict() }}", "digits: .*argument"),
        ('{{ (inter("fccl+") - inter("fccl+", paper=true)).mean() }}', "digits: .*mean"),
    ],
)
def test_mistakes_are_named(numbers: Numbers, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        numbers.render(text, "digits")


def test_verdicts_follow_the_intervals() -> None:
    above, below, open_ = np.array([1.0, 1.2, 1.1]), np.array([-1.0, -1.2, -1.1]), np.array([-1.0, 2.0, 0.5])
    assert verdict(above) == "**holds**"
    assert verdict(below) == verdict(above, below) == verdict(open_, below) == "**does not hold**"
    assert verdict(open_) == verdict(above, open_) == "cannot be told (38 seeds)"
    assert verdict(np.array([-1.0, 1.0, 0.001])) == "cannot be told (more than 100 seeds)"
    assert bounds(np.array([2.0, 2.0, 2.0])) == (2.0, 2.0)
    assert interval(np.zeros(3)) == "+0.0 (+0.0 to +0.0)"


def test_rows_of_a_section_have_the_same_seeds(numbers: Numbers) -> None:
    """Differences are paired by seed."""
    for store in RESULTS.glob("*/runs.jsonl"):
        (seeds,) = {tuple(sorted(r.seed for r in row.results)) for row in numbers.rows(store.parent.name)}
        assert seeds == tuple(range(max(len(seeds), 3)))


RECORDED = re.compile(r"\{# from (\S+) #\}(.*?)\{# end #\}", re.S)
"""A part of a template with numbers of a file, as ``benchmarks/records/NAME.txt``, that no kept run has."""


def templates() -> dict[Path, str]:
    """The texts that may have expressions."""
    texts = {path: path.read_text() for path in [*RESULTS.glob("pages/**/*.md"), *RESULTS.glob("*/about.toml")]}
    return {p: text.partition("reading =")[2] if p.name == "about.toml" else text for p, text in texts.items()}


def test_no_accuracy_is_typed_into_a_template() -> None:
    """Numbers with decimals come from the store or a named file; sizes and options are no accuracies."""
    for path, text in templates().items():
        plain = RECORDED.sub("", text)
        plain = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|`[^`]*`|β = 0\.\d|weight 0\.01|Python.*", "", plain, flags=re.S)
        assert not re.findall(r"\d+\.\d+", plain), path


def test_numbers_of_a_record_are_in_it() -> None:
    """Perhaps with more decimals there."""
    found = [(path, *part) for path, text in templates().items() for part in RECORDED.findall(text)]
    assert found
    for path, record, text in found:
        known = [float(number) for number in re.findall(r"\d+\.\d+", (RESULTS.parent / record).read_text())]
        for number in numbers_in(text):
            assert any(equal_rounded(value, number) for value in known), f"{path.name}: {number}, {record}"


def test_the_numbers_of_a_table_row_are_in_one_line_of_the_record() -> None:
    """In their order."""
    found = [(path, *part) for path, text in templates().items() for part in RECORDED.findall(text)]
    for path, record, text in found:
        lines = [re.findall(r"\d+\.\d+", line) for line in (RESULTS.parent / record).read_text().splitlines()]
        for row in re.findall(r"^\|.*\|$", text, re.M):
            assert any(in_order(numbers_in(row), iter(line)) for line in lines), f"{path.name}: {row}, {record}"


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+\.\d+", re.sub("`[^`]*`", "", text))


def equal_rounded(value: float | str, number: str) -> bool:
    return round(float(value), len(number.partition(".")[2])) == float(number)


def in_order(numbers: list[str], known: Iterator[str]) -> bool:
    return all(any(equal_rounded(value, number) for value in known) for number in numbers)
