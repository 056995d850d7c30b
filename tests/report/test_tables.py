"""Runs side by side: what is bundled, what is compared, what is marked, and what stands in each kind of file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from rich.console import Console
from tests.made_results import a_run

from fedchoir import Experiment, run
from fedchoir.core import checkpoint
from fedchoir.core.result import Result
from fedchoir.reporting.costs import copies_held
from fedchoir.reporting.render import Cell, Sheet, latex, markdown, terminal
from fedchoir.reporting.tables import as_text, find_results, rows, sheets, terminal_tables
from fedchoir.utils.errors import UsageError


def three_methods() -> list[Result]:
    made = [a_run("solo", intra=73.0, inter=25.0)]
    made += [a_run("fccl+", seed=s, intra=90.0 + s, inter=48.0 + 2 * s) for s in range(3)]
    return [*made, a_run("fedmd", intra=80.0, inter=26.0)]


def cells(results: list[Result], view: str = "accuracy") -> dict[str, dict[str, str]]:
    """Label → header → text, of the first sheet; a header that comes twice is numbered."""
    sheet = sheets(rows(results), view)[0]  # type: ignore[arg-type]
    names = [f"{name}{'' if sheet.header.index(name) == i else ' 2'}" for i, name in enumerate(sheet.header)]
    return {line[0].text.strip(): dict(zip(names, (c.text for c in line), strict=True)) for line in sheet.lines}


def test_seeds_are_averaged_and_nothing_else_is() -> None:
    made = rows(three_methods())
    assert [(row.label, len(row.results)) for row in made] == [("solo", 1), ("fccl+", 3), ("fedmd", 1)]
    assert made[1].inter is not None
    assert made[1].inter.mean == mean([48, 50, 52])
    assert made[1].inter.sd == stdev([48, 50, 52])
    others = [a_run("fccl+", settings={"omega": 1}), a_run("fccl+", profile="official"), a_run("fccl+", seed=7)]
    labels = [row.label for row in rows([*three_methods(), *others])]
    assert sorted(labels) == ["fccl+ fixed omega=1.0", "fccl+ fixed omega=3.0", "fccl+ official", "fedmd", "solo"]


def test_other_data_models_or_length_is_another_table() -> None:
    results = [
        a_run("fedmd"), a_run("fedmd", models=("resnet12",)), a_run("fedmd", rounds=3), a_run("fedmd", "office31"),
        a_run("fedmd", settings={"private": (0.01,)}), a_run("fedmd", settings={"label_noise": 0.2}),
        a_run("fedavg", "cifar10", settings={"beta": 0.1}), a_run("fedavg", "cifar10", settings={"fraction": 0.5}),
    ]  # fmt: skip
    groups = [row.group for row in rows(results)]
    assert len(set(groups)) == len(results)
    assert any("beta=0.1" in group for group in groups)
    assert any("fraction=0.5" in group for group in groups)


def test_delta_is_to_the_plainest_solo() -> None:
    """Whichever comes first: a solo with something added is not what others are measured by."""
    helped = a_run("solo", intra=80.0, inter=40.0, settings={"private_augment": "recolor"})
    helped = helped.model_copy(update={"label": "solo, painted"})
    table = cells([helped, *(r.model_copy(update={"label": r.method}) for r in three_methods())])
    assert table["fccl+"]["Δ solo 2"] == "+25.00"
    assert table["solo, painted"]["Δ solo"] == "–"


def test_best_second_delta_and_the_papers_number() -> None:
    table = cells(three_methods())
    assert table["fccl+"]["inter %"] == "50.00 ± 2.00"
    assert table["fccl+"]["Δ solo 2"] == "+25.00"
    assert table["solo"]["Δ solo"] == "–"
    assert table["fccl+"]["paper (ours −) 2"] == "50.49 (-0.49)"
    assert table["fedmd"]["paper (ours −)"] == "80.70 (-0.70)"
    sheet = sheets(rows(three_methods()))[0]
    marked = {line[0].text: [c.place for c in line if c.place is not None] for line in sheet.lines}
    assert marked == {"fccl+": [0, 0], "fedmd": [1, 1], "solo": [2, 2]}
    assert "paper: fccl+/table8, fccl+/table9" in " ".join(sheet.notes)


def test_columns_that_would_be_empty_are_left_out() -> None:
    (sheet,) = sheets(rows([a_run("fedavg", "cifar10", settings={"beta": 0.3})]))
    assert sheet.header == ("method", "seeds", "accuracy %", "bytes / round", "seconds")


def test_what_no_row_has_as_in_the_paper_is_said_once() -> None:
    told = [a_run(method, profile="paper", rounds=2) for method in ("fedmd", "feddf")]
    told.append(a_run("fccl", profile="paper", rounds=2, settings={"local_epochs": 3}))
    (sheet,) = sheets(rows(told))
    opening = "not as in the paper (its own in brackets), "
    said = [note.removeprefix(opening) for note in sheet.notes if note.startswith(opening)]
    assert said == ["all rows: rounds 2 (40)", "fccl paper: local_epochs 3 (20)"]


def test_a_note_says_in_what_a_run_is_not_the_papers() -> None:
    (sheet,) = sheets(rows([a_run("fedmd", rounds=2)]))
    assert any("rounds 2 (40)" in note for note in sheet.notes)
    (sheet,) = sheets(rows([a_run("feddf", beside={"notes": ["syn: a re-creation"]})]))
    assert any("the columns average 82.89" in note for note in sheet.notes)
    assert sheet.notes[-1] == "data: syn: a re-creation"


def test_other_data_is_marked_as_such_and_not_subtracted() -> None:
    result = a_run("fccl+", "digits-lite", beside={"table": "fccl+/table8", "label": "fccl+"})
    (sheet,) = sheets(rows([result]))
    assert "50.49" in [cell.text for cell in sheet.lines[0]]
    assert any("for orientation only" in note for note in sheet.notes)


def test_every_client_with_the_papers_line_below() -> None:
    intra, inter = sheets(rows(three_methods()), "clients")
    assert inter.header == ("method", "mnist →", "usps →", "svhn →", "syn →", "average", "Δ solo")
    texts = [[cell.text for cell in line] for line in inter.lines]
    assert texts[2][1] == "48.50 ± 2.00"
    assert texts[3] == ["  fccl+/table8", "40.13", "50.53", "48.31", "63.00", "50.49", "ours -0.49"]
    assert [line[1].place for line in intra.lines] == [2, None, 0, None, 1, None]


def test_rounds_to_a_target(tmp_path: Path) -> None:
    for seed, curve in enumerate(([50, 70, 80], [60, 76, 77])):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        lines = [json.dumps({"round": r, "intra_avg": v}) for r, v in enumerate(curve)]
        (folder / "events.jsonl").write_text("\n".join([json.dumps({"round": -1, "intra_avg": None}), *lines]) + "\n")
    results = [
        a_run("fedct", "cifar10", seed=s, settings={"beta": 0.1}, beside={"folder": str(tmp_path / f"seed{s}")})
        for s in range(2)
    ]
    assert cells(results)["fedct"]["rounds"] == "2.5 to 76 % (paper 28)"
    (row,) = rows(results)
    assert row.rounds_to(79) is None
    assert "not to 79 %" in [c.text for c in sheets([row], target=79)[0].lines[0]]


def test_costs_are_measured(tmp_path: Path) -> None:
    model = {"model/w": torch.zeros(10, 10), "model/b": torch.zeros(28)}
    teacher = {f"memory/teacher/{name}": t for name, t in model.items()}
    checkpoint.save(tmp_path / "checkpoint", 1, [("client-00000", {**model, **teacher}), ("client-00001", model)], {})
    result = a_run("fccl+", rounds=4, beside={"folder": str(tmp_path)})
    assert copies_held(result) == 1.5
    line = cells([result], "cost")["fccl+"]
    assert (line["up"], line["down"], line["msgs"]) == ("2.0 KiB", "1000 B", "4")
    assert (line["models"], line["local s"], line["total s"]) == ("1.50", "0.75", "1.50")
    assert copies_held(a_run("fccl+")) is None


def test_csv_is_for_machines() -> None:
    read = list(csv.DictReader(io.StringIO(as_text(rows(three_methods()), "csv", "clients"))))
    ours = next(line for line in read if line["label"] == "fccl+")
    assert float(ours["inter"]) == 50.0
    assert float(ours["inter_sd"]) == 2.0
    assert float(ours["inter_minus_solo"]) == 25.0
    assert float(ours["inter_minus_paper"]) == pytest.approx(50 - 50.49)
    assert float(ours["inter_mnist"]) == 48.5
    assert ours["inter_paper_table"] == "fccl+/table8"
    assert {"bytes_up", "models_held", "seconds_local"} <= set(ours)


def test_markdown_and_latex_mark_and_escape() -> None:
    sheet = Sheet("a_b", ("method", "x %"), ((Cell("m|1"), Cell("1.0 ± 0.1", 0)), (Cell("n_2 & co"), Cell("2", 1))))
    assert "| m\\|1 | **1.0 ± 0.1** |" in markdown(sheet)
    written = latex(sheet)
    assert "\\textbf{1.0 $\\pm$ 0.1}" in written
    assert "n\\_2 \\& co & \\underline{2} \\\\" in written
    assert "x \\%" in written
    assert written.count("{") == written.count("}")


def test_a_terminal_of_eighty_columns_shows_every_number() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for table in terminal_tables(rows([a_run("solo"), a_run("fccl+", settings={"private": (0.01,)}), a_run("fccl+")])):
        console.print(table)
    text = console.export_text()
    for word in ("40.00", "60.00", "50.49", "(-10.49)", "private=[0.01]"):
        assert word in text
    assert terminal(Sheet("[bold]", ("a",), ((Cell("[/]"),),))).title == "\\[bold]"


def test_results_are_found_with_their_sweeps_label_and_in_its_order(tmp_path: Path) -> None:
    for name, result in (("a", a_run("fedmd")), ("b", a_run("solo")), ("c", a_run("fccl+"))):
        folder = tmp_path / "sweep" / name
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(result.model_dump_json())
    told = {"table": "fccl+/table8", "title": "", "runs": {"c": "C", "b": "B"}}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(told))
    found = find_results([tmp_path])
    assert [row.label for row in rows(found)] == ["B", "fedmd", "C"]
    assert (found[0].model_extra or {})["folder"] == str(tmp_path / "sweep" / "a")
    with pytest.raises(UsageError, match="there is no nowhere"):
        find_results([Path("nowhere")])
    with pytest.raises(UsageError, match=r"no result\.json"):
        find_results([_empty(tmp_path)])


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


@pytest.mark.parametrize(("method", "models"), [("fedavg", 1), ("fedprox", 2), ("moon", 2), ("fccl", 3), ("fccl+", 2)])
def test_models_held_between_rounds_of_real_runs(method: str, models: int, small: Callable[..., Experiment]) -> None:
    """As in Table 3 of the FCCL+ paper, but for MOON: it counts 3 while MOON trains; after that the global model is the
    server's. FedProx keeps parameters alone, which leaves BatchNorm's statistics out."""
    experiment = small(method, rounds=2, models=("resnet10@4",), settings={"local_epochs": 1})
    run(experiment)
    (result,) = find_results([experiment.out])
    assert copies_held(result) == pytest.approx(models, abs=0.02)
