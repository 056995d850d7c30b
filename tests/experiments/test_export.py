"""Exported models give torch's probabilities, from raw samples on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedchoir
from fedchoir import Experiment, UsageError
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import describe_preprocessing, load_preprocessing
from fedchoir.data.samples import Samples
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.text.tokenizers import HashTokenizer
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.experiments.export import _compare, export
from fedchoir.experiments.trained import ClientEntry, RunModels, TrainedModel, load_trained
from fedchoir.models import build, names


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


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation that stops early."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    settings = {"local_epochs": 1, "validation": 0.3, "early_stopping": 1, "local_lr": 0.3}
    experiment = {"method": "solo", "scenario": "heart", "models": "logistic", "rounds": 30, "metric": "auroc"}
    fedchoir.run(Experiment(**experiment, out=out, settings=settings))
    return out


def test_the_card_of_the_best_round_has_its_metrics(stopped: Path, tmp_path: Path) -> None:
    result = json.loads((stopped / "result.json").read_text())
    best = next(entry for entry in result["best"] if entry["client"] == "hungary")
    _, about, card = export(load_trained(stopped, "hungary", best=True), "torch", tmp_path / "best.pt")
    facts = json.loads(about.read_text())
    assert list(facts["metrics"]["auroc"].values()) == best["metrics"]["auroc"] != result["metrics"]["auroc"][1]
    assert facts["rounds"] == result["rounds"] < facts["planned_rounds"] == 30
    assert f"seed 0, {result['rounds']} rounds of 30: it stopped early." in card.read_text()
    assert "On the run's test sets: the client's best round." in card.read_text()
    _, about, card = export(load_trained(stopped, "hungary"), "torch", tmp_path / "last.pt")
    assert list(json.loads(about.read_text())["metrics"]["auroc"].values()) == result["metrics"]["auroc"][1]
    assert "the mean of the last three evaluated rounds" in card.read_text()


def test_no_best_round_has_its_true_reason(stopped: Path) -> None:
    """All Swiss patients to train on have the disease."""
    with pytest.raises(UsageError, match=r"no best round of switzerland: auroc was not defined .* leave out --best"):
        load_trained(stopped, "switzerland", best=True)


SETS: dict[str, Samples] = {
    "image": ImageSet(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)),
    "table": TableSet(
        torch.rand(4, 3),
        torch.zeros(4, dtype=torch.int64),
        (Column("a", min=0, max=1), Column("b", "boolean"), Column("c", "categorical", ("x", "y", "z"))),
    ),
    "series": SeriesSet(torch.randn(4, 2, 16), torch.zeros(4, dtype=torch.int64)),
    "text": TextSet(torch.randint(0, 30, (4, 7)), torch.zeros(4, dtype=torch.int64), HashTokenizer(30)),
    "tensor": TensorSet(torch.randn(4, 5), torch.zeros(4, dtype=torch.int64)),
}
NARROW = {"mobilenet_v2": "0.25", "efficientnet_b0": "0.25", "googlenet": "0.25", "ft_transformer": "8"}


def untrained(name: str, samples: Samples, folder: Path) -> TrainedModel:
    """A model of the zoo as if a run had trained it."""
    about = describe_preprocessing(samples)
    client = ClientEntry(name="a", model=name, train=4, test=0, domain="a", preprocessing=about)
    run = RunModels(
        method="solo", settings={}, scenario="s", classes=("p", "q", "r"), inputs=samples.input_spec, rounds=1, seed=0,
        public_size=0, clients=(client,),
    )  # fmt: skip
    torch.manual_seed(0)
    model = build(name, 3, samples.input_spec).eval().requires_grad_(False)
    preprocessing = load_preprocessing(about, DataOptions())
    return TrainedModel(model, nn.Sequential(model, nn.Softmax(1)).eval(), preprocessing, run, client, 1, False, folder)


ZOO = [(modality, name) for modality in SETS for name in names(modality)]


@pytest.mark.parametrize(("modality", "name"), ZOO)
def test_every_model_of_the_zoo_can_be_exported(modality: str, name: str, tmp_path: Path) -> None:
    """The export itself compares the probabilities, in batches of two sizes."""
    pytest.importorskip("onnxruntime")
    width = "" if name == "logistic" else f"@{NARROW.get(name, 4)}"
    path, *_ = export(untrained(name + width, SETS[modality], tmp_path), "onnx")
    assert path.stat().st_size > 0


def test_a_transformer_for_tables_becomes_a_program(tmp_path: Path) -> None:
    path, *_ = export(untrained("ft_transformer@8", SETS["table"], tmp_path), "torch-export")
    assert path.stat().st_size > 0


def test_a_program_that_fails_is_one_line(tmp_path: Path) -> None:
    def fail(samples: Tensor) -> Tensor:
        raise RuntimeError(f"batch of {len(samples)}")

    with pytest.raises(UsageError, match="--format onnx is not possible for logistic: RuntimeError: batch of 1; "):
        _compare("onnx", untrained("logistic", SETS["table"], tmp_path), fail)


def test_a_wrong_file_name_or_format_is_refused(run: Path, tmp_path: Path) -> None:
    trained = load_trained(run, "cleveland")
    with pytest.raises(UsageError, match=r"should end with \.onnx"):
        export(trained, "onnx", tmp_path / "m.pt")
    with pytest.raises(UsageError, match="--format 'h5' is not possible"):
        export(trained, "h5")
    assert not list(tmp_path.iterdir())
