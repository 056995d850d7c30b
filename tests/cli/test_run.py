"""run and list: output, files, and one line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., tuple[int, str, str]]
TINY = ["--rounds", "1", "--device", "cpu", "--models", "simple_cnn@4"]
TINY += [p for s in ("image_size=16", "local_epochs=1", "public_size=16", "public_batch=8") for p in ("--set", s)]


@pytest.mark.parametrize(
    ("what", "expected"),
    [("methods", "fccl+"), ("scenarios", "digits-lite"), ("models", "resnet10"), ("public", "photos")],
)
def test_list(fedchoir: Command, what: str, expected: str) -> None:
    code, out, _ = fedchoir("list", what)
    assert code == 0
    assert expected in out


def test_options_of_a_method(fedchoir: Command) -> None:
    code, out, _ = fedchoir("list", "--options", "fccl+")
    assert code == 0
    assert "omega" in out
    code, out, _ = fedchoir("list", "--options", "byol", "--scenario", "cifar10", "--profile", "paper")
    assert code == 0
    assert "options of byol on cifar10, profile paper" in out
    assert "iid" in out


def test_run_a_folder_compare_and_file(fedchoir: Command, shapes: Path, public_shapes: Path, tmp_path: Path) -> None:
    base = ["--scenario", str(shapes), "--public", str(public_shapes)]
    for method in ("solo", "fccl+"):
        code, out, err = fedchoir("run", method, *base, *TINY, "--out", str(tmp_path / "runs" / method))
        assert (code, err) == (0, "")
        assert "result.json" in out
    folder = tmp_path / "runs" / "fccl+"
    result = json.loads((folder / "result.json").read_text())
    promised = "method profile scenario public seed rounds clients tests accuracy intra inter intra_avg inter_avg"
    assert set((promised + " bytes_up bytes_down messages seconds versions settings").split()) <= set(result)
    assert len(result["accuracy"]) == len(result["accuracy"][0]) == 3
    assert {"total", "public", "local", "evaluate"} <= set(result["seconds"])
    assert (folder / "events.jsonl").exists()
    assert list((folder / "tensorboard").glob("events.*"))
    code, out, _ = fedchoir("compare", str(tmp_path / "runs"), "--format", "csv")
    assert code == 0
    assert out.count("\n") == 3
    assert "solo" in out
    again = ["run", str(folder / "experiment.toml"), "--out", str(tmp_path / "again")]
    assert fedchoir(*again)[0] == 0
    assert json.loads((tmp_path / "again" / "result.json").read_text())["accuracy"] == result["accuracy"]


def bad_npz(folder: Path) -> str:
    folder.mkdir()
    (folder / "a.npz").write_bytes(b"not a zip")
    (folder / "b.npz").write_bytes(b"not a zip")
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "fcclplus"], "no method is called 'fcclplus'; nearest: fccl"),
        (["run", "solo", "--scenario", "digit"], "scenario: 'digit' is neither one of"),
        (["run", "solo", "--models", "resnet11"], "resnet11"),
        (["run", "solo", "--rounds", "0"], "rounds = 0 is not possible"),
        (["run", "solo", "--seed", "-1"], "seed = -1 is not possible"),
        (["run", "solo", "--profile", "best"], "profile = 'best' is not possible: it should be 'fixed'"),
        (["run", "solo", "--precision", "fp8"], "precision = 'fp8' is not possible"),
        (["run", "solo", "--device", "tpu9"], "--device 'tpu9' is not possible"),
        (["run", "solo", "--set", "local_epochs"], "--set 'local_epochs' is not possible: it should be key=value"),
        (["run", "solo", "--set", "local_epoch=3"], "solo: there is no option 'local_epoch'; did you mean local_"),
        (["run", "solo", "--set", "local_lr=fast"], "solo: local_lr = 'fast' is not possible"),
        (["run", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", "solo", "--scenario", "digits", "--data-root", "nowhere"], "mnist.npz"),
        (["run", "fedavg", "--models", "mlp,simple_cnn"], "fedavg averages weights, so all clients need one"),
        (["compare", "nowhere"], "nowhere does not exist"),
        (["list", "--options", "x"], "no method is called 'x'"),
        (["list", "--options", "solo", "--profile", "best"], "profile = 'best' is not possible"),
        (["run", "solo", "--set", "private=0"], "private = 0 is not possible: it should be one number for all"),
        (["run", "solo", "--set", "partition=file"], "partition = 'file' is not possible without a file"),
    ],
)  # fmt: skip
def test_mistakes_get_one_line_and_leave_nothing_behind(
    fedchoir: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = fedchoir(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_is_named(fedchoir: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = fedchoir("run", "solo", "--scenario", bad_npz(tmp_path / "broken"))
    assert code == 2
    assert "a.npz" in err
    (tmp_path / "bad.toml").write_text("method = ")
    code, _, err = fedchoir("run", "bad.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "bad.toml is not valid TOML" in err


def test_a_run_is_not_overwritten_and_not_resumed_with_other_settings(
    fedchoir: Command, shapes: Path, tmp_path: Path
) -> None:
    run = ["run", "solo", "--scenario", str(shapes), *TINY, "--out", str(tmp_path / "r")]
    assert fedchoir(*run)[0] == 0
    before = (tmp_path / "r" / "result.json").read_text()
    code, _, err = fedchoir(*run)
    assert code == 2
    assert "holds a run already" in err
    code, _, err = fedchoir(*run, "--seed", "3", "--resume")
    assert code == 2
    assert "seed was 0 and is now 3" in err
    assert (tmp_path / "r" / "result.json").read_text() == before


def test_seven_unknown_classes(fedchoir: Command, tmp_path: Path, public_shapes: Path) -> None:
    """A user's folder: four .npz files, seven classes, images of another size, only x and y."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mine"
    folder.mkdir()
    for k in range(4):
        arrays: dict[str, Any] = {"x": rng.integers(0, 256, (70, 20, 24, 3), dtype=np.uint8), "y": np.arange(70) % 7}
        np.savez(folder / f"site{k}.npz", **arrays)
    run = ["run", "fccl+", "--scenario", str(folder), "--public", str(public_shapes), *TINY[:4], *TINY[6:]]
    code, _, err = fedchoir(*run, "--models", "simple_cnn@4,resnet10@4,mlp,vgg9@4", "--out", str(tmp_path / "r"))
    assert (code, err) == (0, "")
    assert len(json.loads((tmp_path / "r" / "result.json").read_text())["clients"]) == 4
