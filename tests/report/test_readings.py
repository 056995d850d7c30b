"""Numbers in the words of the results page come out of the kept runs; here they are found again by other means."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from fedchoir.reporting.prose_numbers import SUMMARY, Sections, fill
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def said(wish: str, section: str = "digits") -> str:
    return fill(f"by {{{{{wish}}}}} points", Sections(RESULTS), section).removeprefix("by ").removesuffix(" points")


def results(label: str, section: str = "digits") -> list[dict[str, Any]]:
    folders = [RESULTS / section / "runs" / f"{section}-{label}-seed{seed}" for seed in range(3)]
    return [json.loads((folder / "result.json").read_text()) for folder in folders]


def events(label: str, seed: int, section: str = "digits") -> list[dict[str, Any]]:
    lines = (RESULTS / section / "runs" / f"{section}-{label}-seed{seed}" / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["round"] >= 0]


def test_means_differences_and_ranges_over_seeds() -> None:
    choir, fccl = ([run["inter_avg"] for run in results(label)] for label in ("choir", "fccl+"))
    apart = [a - b for a, b in zip(choir, fccl, strict=True)]
    assert said("inter|choir") == f"{mean(choir):.1f}"
    assert said("inter|choir|2") == f"{mean(choir):.2f}"
    assert said("inter|choir|fccl+") == f"{mean(apart):.1f}"
    assert said("inter|choir|fccl+|seeds") == f"{min(apart):.1f} to {max(apart):.1f}"
    assert said("inter|fccl+|choir|signed") == f"\u2212{mean(apart):.1f}"
    assert said("inter|choir|fccl+|signed|0") == f"+{mean(apart):.0f}"
    assert said("inter|choir;fccl+|sd") == " to ".join(f"{v:.1f}" for v in sorted([stdev(choir), stdev(fccl)]))
    assert said("inter|choir;fccl+|spread") == said("inter|choir|fccl+")


def test_one_client_and_one_cell() -> None:
    table = [[mean(run["accuracy"][i][j] for run in results("choir")) for j in range(4)] for i in range(4)]
    assert said("usps|choir") == f"{table[1][1]:.1f}"
    assert said("mnist>svhn|choir") == f"{table[0][2]:.1f}"
    assert said("svhn>*|choir") == f"{mean(table[2][j] for j in (0, 1, 3)):.1f}"


def test_rounds_bests_and_falls() -> None:
    course = [[(e["round"] + 1, e["accuracy"][0][0]) for e in events("fedmd", s) if e["accuracy"]] for s in range(3)]
    ends = [run["accuracy"][0][0] for run in results("fedmd")]
    assert said("mnist@20|fedmd") == f"{mean(dict(run)[20] for run in course):.1f}"
    bests = [max(value for _, value in run) for run in course]
    assert said("mnist@best|fedmd") == f"{mean(bests):.1f}"
    assert said("mnist@fall|fedmd") == f"{mean(b - e for b, e in zip(bests, ends, strict=True)):.1f}"


def test_losses_are_never_understated() -> None:
    late = [e["losses"]["usps"]["local_loss"] for s in range(3) for e in events("fedmd", s) if e["round"] >= 9]
    most = float(said("loss:usps@10+|fedmd|seeds|most|6"))
    assert max(late) <= most < max(late) + 1e-6
    all_of_them = [e["losses"]["usps"]["local_loss"] for s in range(3) for e in events("fedmd", s)]
    least = float(said("loss:usps@least|fedmd|seeds|least|9"))
    assert min(all_of_them) - 1e-9 < least <= min(all_of_them)


def test_what_the_paper_prints() -> None:
    assert said("inter|fccl+ (paper)") == "50.5"
    assert said("svhn|fccl+ (paper)") == "87.1"
    columns = [float(said(f"{name}>*|fccl+ (paper)|2")) for name in ("mnist", "usps", "svhn", "syn")]
    assert mean(columns) == pytest.approx(50.49, abs=0.01)
    assert len(set(columns)) == 4
    assert said("intra|fccl+ (paper)|fccl+") == f"{90.57 - mean(run['intra_avg'] for run in results('fccl+')):.1f}"


def test_rows_of_other_sections_and_of_one_of_several_tables() -> None:
    solo = mean(run["intra_avg"] for run in results("solo", "digits-lite"))
    assert said("intra|digits-lite/solo") == f"{solo:.1f}"
    with_mlp = [mean(r["intra_avg"] for r in _with_model(name)) for name in ("mlp", "resnet18@16")]
    assert [said(f"intra|solo [{n}]", "other-models-lite") for n in ("mlp", "resnet18")] == [
        f"{v:.1f}" for v in with_mlp
    ]


def _with_model(name: str) -> list[dict[str, Any]]:
    paths = (RESULTS / "other-models-lite" / "runs").glob("*/result.json")
    runs = [json.loads(path.read_text()) for path in paths]
    return [r for r in runs if r["method"] == "solo" and name in [client["model"] for client in r["clients"]]]


@pytest.mark.parametrize(
    ("wish", "answer"),
    [
        ("inter|chior", "no rows are called 'chior' in digits, which has .*choir"),
        ("paris|choir", "there is no client 'paris'; there are mnist, usps, svhn, syn"),
        ("inter|choir|solo|fccl", "two rows to take off"),
        ("inter@4|choir", "no accuracy of round 4"),
        ("inter|choir (paper)", "no paper prints inter of choir"),
        ("mnist>svhn|fccl+ (paper)", "papers print no mnist>svhn"),
        ("loss:mnist|choir", "say of which round"),
        ("mnist", "wanted: what"),
    ],
)
def test_a_wish_that_cannot_be_met_is_named(wish: str, answer: str) -> None:
    with pytest.raises(UsageError, match=rf"digits/about\.toml: \{{\{{.*: .*{answer}"):
        said(wish)


def test_the_summary_asks_for_rows_with_their_sections() -> None:
    assert fill("{{inter|digits/choir|digits/fccl+}}", Sections(RESULTS)) == said("inter|choir|fccl+")
    with pytest.raises(UsageError, match=r"^summary\.md: \{\{inter\|digits/chior\}\}: no rows are called 'chior'"):
        fill("{{inter|digits/chior}}", Sections(RESULTS))
    opening = fill((RESULTS / SUMMARY).read_text(), Sections(RESULTS))
    assert opening in (ROOT / "docs" / "results.md").read_text()


def test_no_number_in_a_reading_is_typed() -> None:
    """But for those of a record, which is named in the same sentence and has them."""
    typed = 0
    readings = {path.parent.name: tomllib.loads(path.read_text())["reading"] for path in RESULTS.glob("*/about.toml")}
    for name, text in {**readings, SUMMARY: (RESULTS / SUMMARY).read_text()}.items():
        reading = re.sub(r"\{\{.+?\}\}", "", text)
        for sentence in re.split(r"(?<=[.:;])\s", reading):
            record = re.search(r"`(benchmarks/records/[^`]+)`", sentence)
            for number in re.findall(r"\d+\.\d+", re.sub(r"`[^`]*`", "", sentence)):
                assert record, f"{name}: {number} in “{sentence}”"
                assert number in (ROOT / record[1]).read_text()
                typed += 1
    assert typed == 2  # the rule above is not idle


MOVED = "fccl+, moved and painted"
LED = "choir, with a lead"
SMALL = "fedavg, one small model, moved and painted"
ALONE = "solo, one small model, moved and painted"
TOGETHER = "solo, moved and painted, one place"
TUNED = "fedavg, one small model, moved and painted, tuned at home"
ALL = " | ".join(f"{{{{intra|{row}}}}} / {{{{inter|{row}}}}}" for row in ("choir", "ALONE", "SMALL", "TUNED", "LED"))
QUOTED = [
    ("README.md", "digits", "as published by {{inter|choir|fccl+, as released|0}} points and more away"),
    ("docs/choir.md", "digits", "Choir reaches {{intra|choir}} % at home and {{inter|choir}} % on the other"),
    ("docs/choir.md", "digits", "FCCL+ {{intra|fccl+}} and {{inter|fccl+}}; on Office-Caltech"),
    ("docs/choir.md", "office-caltech", "on Office-Caltech {{intra|choir}} and {{inter|choir}}, FCCL+ {{intra|fccl+}}"),
    ("docs/choir.md", "digits", "FCCL+ comes to {{intra|MOVED}} and {{inter|MOVED}}"),
    ("docs/choir.md", "office-caltech", "and to {{intra|MOVED}} and {{inter|MOVED}} on Office-Caltech"),
    ("docs/choir.md", "office-caltech", "adds to it: {{inter|choir|solo, moved and painted}} points between"),
    ("docs/choir.md", "digits", "{{intra|MOVED|choir|seeds}} points ahead at home; on Office-Caltech"),
    ("docs/choir.md", "office-caltech", "by {{inter|choir|MOVED|seeds}} points between domains"),
    ("docs/choir.md", "digits", f"| Digits | {ALL} |"),
    ("docs/choir.md", "office-caltech", f"| Office-Caltech | {ALL} |"),
    ("docs/choir.md", "digits-lite", f"| digits-lite | {ALL} |"),
    ("docs/choir.md", "digits", "Choir is at {{intra|LED}} and {{inter|LED}} on Digits"),
    ("docs/choir.md", "office-caltech", "at {{intra|LED}} and {{inter|LED}} on Office-Caltech."),
    ("docs/choir.md", "digits-lite", "digits-lite comes to {{intra|LED alone}} and {{inter|LED alone}}: the exchange"),
    ("docs/choir.md", "digits-lite", "the exchange adds {{inter|LED|LED alone}} points between"),
    ("docs/choir.md", "digits-lite", "domains and costs {{intra|LED alone|LED}} at home"),
    (
        "docs/choir.md",
        "digits",
        "it is {{intra|solo, one small model|solo|0}} points better at home than the papers' models",
    ),
    ("docs/choir.md", "office-caltech", "{{intra|solo|solo, one small model|0}} points worse at home and"),
    ("docs/choir.md", "office-caltech", "worse at home and {{inter|solo, one small model|solo|0}} better away"),
    ("docs/cross-training.md", "fedct", "every seed ({{intra|fedct beta=0.5|CAKB+MFA beta=0.5|seeds}} points)"),
    ("README.md", "digits", "reaches {{intra|fccl+, as released}} % at home and {{inter|fccl+, as released}} % away"),
    ("README.md", "digits", "(published {{intra|fccl+ (paper)}} and {{inter|fccl+ (paper)}})"),
    ("README.md", "ablations", "brings {{inter|FCCM+FISL+FNTD, 40 rounds|FCCM+FISL, 40 rounds}} points away"),
    ("README.md", "ablations", "(published {{inter|FCCM+FISL+FNTD (paper)|FCCM+FISL (paper)}})"),
    ("docs/choir.md", "digits-lite", "would have {{intra|TOGETHER}} at home and {{inter|TOGETHER}} away"),
    ("docs/choir.md", "digits-lite", "is {{intra|TOGETHER|LED|seeds}} and"),
    ("docs/choir.md", "digits-lite", "and {{inter|TOGETHER|LED|seeds}} points below that"),
    ("README.md", "digits-lite", "have {{inter|solo}} % between domains alone, {{inter|fccl+}} with FCCL+"),
    ("README.md", "digits-lite", "and would have {{inter|solo, one place}} in one place; with augmentation"),
    ("README.md", "digits-lite", "{{inter|TOGETHER}} in one place, and Choir with a lead has {{inter|LED}}."),
]


@pytest.mark.parametrize(("page", "section", "sentence"), QUOTED)
def test_other_pages_say_what_the_results_say(page: str, section: str, sentence: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    sentence = sentence.replace("MOVED", MOVED).replace("SMALL", SMALL)
    sentence = sentence.replace("ALONE", ALONE).replace("TUNED", TUNED).replace("LED", LED)
    sentence = sentence.replace("TOGETHER", TOGETHER)
    assert fill(sentence, Sections(RESULTS), section) in text


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("every client alone", "solo"),
        ("FedMD", "fedmd"),
        ("FedDF", "feddf"),
        ("FCCL", "fccl"),
        ("FCCL+", "fccl+"),
        ("FCCL+ with Choir's augmentation", MOVED),
        ("Choir", "choir"),
        ("Choir with a lead", LED),
    ],
)
def test_the_table_of_the_readme(name: str, row: str) -> None:
    sections = Sections(RESULTS)
    cells = [fill(f"{{{{{what}|{row}}}}}", sections, "digits") for what in ("intra", "inter")]
    cells += [fill(f"{{{{{what}|{row}}}}}", sections, "office-caltech") for what in ("intra", "inter")]
    assert f"| {' | '.join([name, *cells])} |" in (ROOT / "README.md").read_text()


def visits(label: str, seed: int) -> tuple[float, float]:
    """To how many places each client's model went, and which share of its visits was to one of them."""
    folder = RESULTS / "fedct" / "runs" / f"cifar10-{label.replace(' ', '-')}-seed{seed}"
    places: dict[int, Counter[int]] = defaultdict(Counter)
    for line in (folder / "events.jsonl").read_text().splitlines():
        for exchange in json.loads(line)["measures"].get("exchanges", []):
            for model, place in exchange:
                places[model][place] += 1
    return mean(map(len, places.values())), mean(max(c.values()) / c.total() for c in places.values())


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("FedExg", "fedexg"),
        ("FedCT", "fedct"),
        ("FedCT, models sent at random", "random"),
        ("FedCT, sent where least consistent", "inconsistency"),
        ("FedCT: assignment alone", "CAKB"),
    ],
)
def test_the_table_of_cross_training(name: str, row: str) -> None:
    cells = [name]
    for beta in ("0.5", "0.1"):
        went = [visits(f"{row} beta={beta}", seed) for seed in range(3)]
        ahead = fill(f"{{{{intra|{row} beta={beta}|fedavg beta={beta}|seeds}}}}", Sections(RESULTS), "fedct")
        cells += [ahead, f"{mean(w[0] for w in went):.1f}", f"{100 * mean(w[1] for w in went):.0f} %"]
    assert f"| {' | '.join(cells)} |" in (ROOT / "docs/cross-training.md").read_text()
