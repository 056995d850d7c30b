"""A model of the user's own from the command line: check it, run it, start it from weights."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cli.test_run import TINY
from tests.models.own_models import Convolutional

Command = Callable[..., tuple[int, str, str]]
NET = """
    from tests.models.own_models import Convolutional, PlainNet

    def build(num_classes):
        return Convolutional(num_classes)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_net.py").write_text(textwrap.dedent(NET))
    torch.save(Convolutional(1000).state_dict(), tmp_path / "w.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_a_model(fedchoir: Command, folder: Path) -> None:
    sizes = ["--classes", "4", "--input", "3x16x16", "--device", "cpu"]
    code, out, _ = fedchoir("list", "models", "--check", "my_net.py:build[train=head]", *sizes)
    assert code == 0
    parameters = sum(p.numel() for p in Convolutional(4).parameters())
    assert f"{parameters:,}, 28 of them trained" in out
    assert "6×6×6" in out
    assert "my_net.py:build[train=head]" in out
    code, out, err = fedchoir("list", "models", "--check", "my_net.py:bild")
    assert (code, out) == (2, "")
    assert "nothing called 'bild'" in err


def test_run_with_weights_and_see_the_note(fedchoir: Command, folder: Path, shapes: Path) -> None:
    data = [*TINY[:4], *TINY[6:], "--scenario", str(shapes), "--out", "r"]
    code, out, err = fedchoir("run", "solo", *data, "--models", "my_net.py:build[train=head]", "--weights", "w.pt")
    assert code == 0, err
    assert "w.pt has another size for the head" in " ".join(out.split())
    assert "[weights=w.pt,train=head]" in out.replace("\n", "")
    clients = json.loads((folder / "r" / "result.json").read_text())["clients"]
    assert {client["model"] for client in clients} == {"my_net.py:build[weights=w.pt,train=head]"}


def test_a_file_beside_the_toml(
    fedchoir: Command, folder: Path, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "e.toml").write_text(
        f'method = "solo"\nscenario = "{shapes}"\nrounds = 1\ndevice = "cpu"\n'
        'models = [{source = "my_net.py:build", weights = "w.pt"}, "simple_cnn@4"]\n'
        "[settings]\nimage_size = 16\nlocal_epochs = 1\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, _, err = fedchoir("run", str(folder / "e.toml"), "--out", "r")
    assert code == 0, err
    assert (elsewhere / "r" / "result.json").exists()


@pytest.mark.parametrize(
    ("models", "weights", "line"),
    [
        ("my_net.py:build", "none.pt", "there is no file none.pt"),
        ("simple_cnn@4", "w.pt", "does not fit model 'simple_cnn@4[weights=w.pt]'"),
        ("my_net.py:PlainNet", "w.pt", "6 missing (conv1.weight, conv1.bias, conv2.weight and 3 more)"),
        ("object:Net-00000000", "none", "Python object of the process that started the run"),
    ],
)
def test_mistakes_are_one_line(
    fedchoir: Command, folder: Path, shapes: Path, models: str, weights: str, line: str
) -> None:
    data = [*TINY[:4], *TINY[6:], "--scenario", str(shapes), "--out", "r"]
    code, _, err = fedchoir("run", "solo", *data, "--models", models, "--weights", weights)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1
    assert not (folder / "r").exists()
