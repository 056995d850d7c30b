"""The notebooks in examples/: stored without outputs, and executed as a user does.

`tests/deploy_e2e/test_four_hospitals_notebook.py` executes the one that starts real processes.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import onnx
import pytest
import torch
from tests.notebooks import NOTEBOOKS, execute, numbers

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")


def test_these_notebooks_are_executed() -> None:
    """A new notebook needs a test that executes it."""
    assert [path.stem for path in NOTEBOOKS] == ["compare_methods", "four_hospitals", "own_model_and_data"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count is not None]


@pytest.mark.slow
def test_compare_methods(tmp_path: Path) -> None:
    notebook = execute("compare_methods.ipynb", tmp_path)
    table = {line.split()[0]: numbers(line) for line in notebook.shown("groupby").splitlines() if numbers(line)}
    assert list(table) == ["solo", "fedmd", "feddf", "fccl+"]
    for name, (intra, _, inter, _, worst, _, sent, _) in table.items():
        assert 70 < intra < 100
        assert 50 < inter < 100
        assert 50 < worst <= intra
        assert (sent > 0) == (name != "solo")
    assert table["fedmd"][6] == table["feddf"][6] < table["fccl+"][6]  # FCCL+ also sends similarities
    names, _, *rows = notebook.shown("auroc").splitlines()
    assert {"accuracy", "auroc", "brier", "ece"} <= set(names.split(", "))
    assert [row.split()[0] for row in rows] == list(HOSPITALS)
    assert all(50 < value <= 100 for row in rows for value in numbers(row))
    assert all(len(numbers(row)) == len(HOSPITALS) for row in rows)
    page = Path(notebook.shown("write_report").rpartition(" (")[0])
    assert page.is_relative_to(tmp_path)
    assert "fedmd" in page.read_text()


@pytest.mark.slow
def test_own_model_and_data(tmp_path: Path) -> None:
    notebook = execute("own_model_and_data.ipynb", tmp_path)
    (folder,) = (tmp_path / "tmp").glob("own-model-*")
    checked = notebook.shown("list models --check")
    assert "for table 5, 2 classes" in checked
    facts = [line.split()[:2] for line in checked.splitlines()]
    assert ["parameters", "250"] in facts
    assert ["features", "8"] in facts
    trained = notebook.shown("run fedmd")
    (row,) = [line for line in trained.splitlines() if line.startswith("fedmd")]
    seeds, intra, inter, *_ = numbers(row)
    assert seeds == 1
    assert min(intra, inter) > 85  # AUROC in percent of labels that a line separates, up to noise
    assert "columns: 2 numeric (age, pressure), 1 categorical (smoker: former, no, yes)" in trained

    _, header, *rows = notebook.shown("predict run").split()[-6:]
    assert header == "sample,class,p(healthy),p(ill)"
    predicted = [row.split(",") for row in rows]
    assert len(predicted) == 4
    for _, name, healthy, ill in predicted:
        assert float(healthy) + float(ill) == pytest.approx(1, abs=1e-5)
        assert name == ("ill" if float(ill) > float(healthy) else "healthy")

    assert "All keys matched successfully" in notebook.shown("--format torch")
    before, after = (torch.load(folder / name, weights_only=True) for name in ("north.pt", "run/export/north-best.pt"))
    assert before.keys() == after.keys()
    assert not torch.equal(before["out.weight"], after["out.weight"])
    onnx.checker.check_model(str(folder / "run" / "export" / "north-best.onnx"))
    exported = [numbers(line)[1:] for line in notebook.shown("--format onnx").splitlines()[-4:]]
    assert exported == [pytest.approx([float(p) for p in row[2:]], abs=1e-4) for row in predicted]
