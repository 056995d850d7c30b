"""Start from trained weights."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.models.model_checks import images
from tests.models.own_models import Convolutional
from torch import Tensor

from fedchoir import models
from fedchoir.utils.errors import UsageError

OWN = "tests.models.own_models:Convolutional"


def trained(seed: int = 7, classes: int = 10) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    net = Convolutional(classes)
    net(images(8))  # BatchNorm's statistics, too
    return net.state_dict()


def weights_of(path: Path, source: str = OWN, classes: int = 10) -> models.Model:
    return models.build(f"{source}[weights={path}]", classes)


def fits(model: models.Model, state: dict[str, Tensor], without: tuple[str, ...] = ()) -> bool:
    bare = model.bare_names()
    found = {bare[name]: t for name, t in model.state_dict().items()}
    return all(torch.equal(found[name], t) for name, t in state.items() if name not in without)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": s, "optimizer": {"lr": 0.1}},
        lambda s: {"model": {"state_dict": s}},
        lambda s: {f"module.{name}": t for name, t in s.items()},
        lambda s: {"state_dict": {f"_orig_mod.{name}": t for name, t in s.items()}},
        lambda s: {f"net.{name}": t for name, t in s.items()},
    ],
)
def test_checkpoints_of_every_common_form(tmp_path: Path, wrap: Any) -> None:
    torch.save(wrap(trained()), tmp_path / "w.pt")
    model = weights_of(tmp_path / "w.pt")
    assert fits(model, trained())
    assert not model.notes


def test_safetensors(tmp_path: Path) -> None:
    save_file(trained(), tmp_path / "w.safetensors")
    assert fits(weights_of(tmp_path / "w.safetensors"), trained())


def test_safetensors_with_another_suffix(tmp_path: Path) -> None:
    save_file(trained(), tmp_path / "w.bin")
    assert fits(weights_of(tmp_path / "w.bin"), trained())


def test_a_model_of_the_zoo_starts_from_its_own_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = models.build("resnet10@4", 10).state_dict()
    save_file(state, tmp_path / "w.safetensors")
    assert fits(weights_of(tmp_path / "w.safetensors", "resnet10@4"), state)


@pytest.mark.parametrize("classes", [10, 1000])
def test_a_file_of_timm_fits_a_model_of_timm(tmp_path: Path, classes: int) -> None:
    torch.manual_seed(5)
    state = timm.create_model("mobilenetv3_small_050", num_classes=classes).state_dict()
    torch.save(state, tmp_path / "w.pth")
    model = weights_of(tmp_path / "w.pth", "timm:mobilenetv3_small_050")
    head = ("classifier.weight", "classifier.bias")
    assert fits(model, state, without=() if classes == 10 else head)
    assert [note for note in model.notes if "another size for the head (classifier.bias" in note] == list(model.notes)
    assert bool(model.notes) == (classes == 1000)


def test_a_head_of_another_size_is_replaced_with_a_note(tmp_path: Path) -> None:
    torch.save(trained(classes=1000), tmp_path / "w.pt")
    model = weights_of(tmp_path / "w.pt")
    assert fits(model, trained(classes=1000), without=("head.weight", "head.bias"))
    (note,) = model.notes
    assert "w.pt has another size for the head (head.bias, head.weight), which starts untrained" in note


def test_a_trunk_without_a_head_is_enough(tmp_path: Path) -> None:
    torch.save({name: t for name, t in trained().items() if not name.startswith("head.")}, tmp_path / "w.pt")
    (note,) = weights_of(tmp_path / "w.pt").notes
    assert "no weights for the head" in note


class Gadget:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def _write(kind: str, path: Path) -> None:
    state = trained()
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"state_dict": Gadget()}))
    elif kind == "pickled model":
        torch.save(Convolutional(), path)
    elif kind == "text":
        path.write_text("these are no weights")
    elif kind == "JSON":
        path.write_text('{"these": "are no weights"}')
    elif kind == "image":
        path.write_bytes(b"\xff\xd8\xff\xe0JFIF" * 9)
    elif kind == "empty":
        path.touch()
    elif kind == "no state":
        torch.save({"epoch": 3}, path)
    elif kind == "another model":
        torch.save(models.build("resnet10@4", 10).state_dict(), path)
    elif kind == "other shape":
        torch.save(state | {"stem.weight": torch.zeros(4, 3, 5, 5)}, path)
    elif kind == "missing":
        torch.save({name: t for name, t in state.items() if not name.startswith("body.2")}, path)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("pickle", ["is a pickle", "torch.save(model.state_dict(), FILE)"]),
        ("pickled model", ["is a pickle", "torch.save(model.state_dict(), FILE)"]),
        ("text", ["no safetensors file or PyTorch checkpoint"]),
        ("JSON", ["no safetensors file or PyTorch checkpoint: it begins with b'{\"th'"]),
        ("image", ["no safetensors file or PyTorch checkpoint: it begins with b'\\xff\\xd8\\xff\\xe0'"]),
        ("empty", ["no safetensors file or PyTorch checkpoint"]),
        ("no state", ["has no state dict"]),
        ("nothing", ["there is no file"]),
        ("another model", ["does not fit model", OWN, "missing (stem.weight", "unknown to the model", "more"]),
        ("other shape", ["1 other shapes (stem.weight is 4×3×5×5 in the file and 4×3×3×3 in the model)"]),
        ("missing", ["2 missing (body.2.weight, body.2.bias)"]),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(kind, tmp_path / "w.pt")
    with pytest.raises(UsageError) as caught:
        weights_of(tmp_path / "w.pt")
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache in a new folder, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_timm_reads_its_own_cache(hub: Path) -> None:
    """The file is where the hub's client puts it."""
    torch.manual_seed(11)
    net = timm.create_model("mobilenetv3_small_050")
    place = hub / "models--timm--mobilenetv3_small_050.lamb_in1k"
    (place / "snapshots" / "abc").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    save_file(net.state_dict(), place / "snapshots" / "abc" / "model.safetensors")
    model = models.build("timm:mobilenetv3_small_050[pretrained]", 4)
    assert fits(model, net.state_dict(), without=("classifier.weight", "classifier.bias"))
    (note,) = model.notes
    assert "trained on 224×224 images with mean (0.485, 0.456, 0.406)" in note


@pytest.mark.parametrize("name", ["timm:resnet18", "timm:resnet18d_missing"])
def test_weights_that_cannot_be_downloaded_are_one_line(hub: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.build(f"{name}[pretrained]", 4)
    assert "\n" not in str(caught.value)
    assert f"'{name}" in str(caught.value)
    assert "timm:resnet18[weights=FILE]" in str(caught.value) or "did you mean" in str(caught.value)
