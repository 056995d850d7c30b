"""Exported models give torch's probabilities, from raw samples on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedchoir
from fedchoir import Experiment, UsageError
from fedchoir.experiments.export import export
from fedchoir.experiments.trained import load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hospitals with models of their own; one of them is a module of the user's."""
    folder = tmp_path_factory.mktemp("heart")
    net = folder / "my_net.py"
    net.write_text(
        "from torch import nn\n\n\ndef build(num_classes, input_shape):\n"
        "    first = nn.Linear(input_shape[0], 8)\n"
        "    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, num_classes))\n"
    )
    settings = {"local_epochs": 1, "public_size": 32}
    models = f"logistic,{net}:build,res_mlp"
    fedchoir.run(
        Experiment(method="fedmd", scenario="heart", models=models, rounds=1, out=folder / "run", settings=settings)
    )
    return folder / "run"


def test_weights_have_the_names_of_the_users_module(run: Path, tmp_path: Path) -> None:
    trained = load_trained(run, "hungary")
    path, about, card = export(trained, "safetensors", tmp_path / "m.safetensors")
    net = nn.Sequential(nn.Linear(trained.run.inputs.shape[0], 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    net.load_state_dict(load_file(path))
    inputs = torch.randn(4, trained.run.inputs.shape[0])
    torch.testing.assert_close(net(inputs), trained.model(inputs))
    facts = json.loads(about.read_text())
    assert facts["classes"] == list(trained.classes)
    assert facts["metrics"]["accuracy"].keys() == {"cleveland", "hungary", "switzerland", "long-beach"}
    assert "Classes, in the order of the outputs" in card.read_text()
    again, *_ = export(trained, "torch", tmp_path / "m.pt")
    loaded = torch.load(again, weights_only=True)
    assert all(torch.equal(loaded[name], t) for name, t in net.state_dict().items())


@pytest.mark.parametrize("client", ["cleveland", "hungary"])
def test_onnx_takes_raw_rows_with_missing_values(client: str, run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = load_trained(run, client)
    path, *_ = export(trained, "onnx", tmp_path / "m.onnx")
    rows = torch.rand(7, *trained.client.preprocessing["stored"]["shape"])
    rows[2, 3] = float("nan")
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"samples": rows.numpy()})
    np.testing.assert_allclose(found, trained.probabilities(rows).numpy(), atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(trained.classes)


def test_an_exported_program_runs_without_fedchoir(run: Path, tmp_path: Path) -> None:
    trained = load_trained(run, "switzerland")
    path, *_ = export(trained, "torch-export", tmp_path / "m.pt2")
    rows = torch.rand(3, *trained.client.preprocessing["stored"]["shape"])
    torch.testing.assert_close(torch.export.load(path).module()(rows), trained.probabilities(rows))


def test_a_wrong_file_name_or_format_is_refused(run: Path, tmp_path: Path) -> None:
    trained = load_trained(run, "cleveland")
    with pytest.raises(UsageError, match=r"should end with \.onnx"):
        export(trained, "onnx", tmp_path / "m.pt")
    with pytest.raises(UsageError, match="--format 'h5' is not possible"):
        export(trained, "h5")
    assert not list(tmp_path.iterdir())
