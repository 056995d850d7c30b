"""Models are taken home as the run evaluated them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import events

import fedchoir
from fedchoir import Experiment, UsageError
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import describe_preprocessing, load_preprocessing
from fedchoir.data.tabular import heart
from fedchoir.data.tabular.cells import store
from fedchoir.data.text.text_set import TextSet
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.export import description
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.trained import load_trained

NONE = torch.zeros(1, dtype=torch.int64)
IMAGES = {"image_size": 16, "local_epochs": 1, "local_batch": 16, "public_size": 16, "public_batch": 8}


def finished(out: Path, method: str, scenario: str, settings: dict[str, Any], **more: Any) -> Experiment:
    experiment = Experiment(method=method, scenario=scenario, rounds=2, out=out, settings=settings, **more)
    fedchoir.run(experiment)
    return experiment


@pytest.mark.parametrize(
    ("method", "models", "settings"),
    [
        ("fedmd", "simple_cnn@4,resnet10@4", {}),
        ("fedavg", "simple_cnn@4", {}),  # evaluates the global model
        (
            "choir",
            "simple_cnn@4,resnet10@4",
            {"shared_model": "simple_cnn@4", "condense_steps": 2},
        ),  # evaluates an ensemble
        ("fedbn", "resnet10@4", {}),  # the global model, completed by the client's own layers
        ("fedrolex", "resnet10@4,resnet10@2", {}),  # a slice of the global model
        ("apfl", "resnet10@4", {}),  # a mixture
    ],
)
def test_a_loaded_model_has_the_accuracy_that_the_run_reported(
    method: str, models: str, settings: dict[str, Any], shapes: Path, public_shapes: Path, tmp_path: Path
) -> None:
    experiment = finished(
        tmp_path / "run", method, str(shapes), {**IMAGES, **settings}, models=models, public=str(public_shapes)
    )
    _, scenario, _ = prepare(make_plan(experiment))
    reported = events(experiment)[-1]["accuracy"]
    for row, client in zip(reported, scenario.clients, strict=True):
        trained = load_trained(tmp_path / "run", client.name)
        for accuracy, test in zip(row, scenario.tests.values(), strict=True):
            right = trained.probabilities(test.inputs).argmax(dim=1) == test.labels
            assert 100 * right.double().mean().item() == pytest.approx(accuracy, abs=1e-9)


def test_rows_of_a_table_are_encoded_with_the_statistics_of_the_client(tmp_path: Path) -> None:
    experiment = finished(tmp_path / "run", "fedmd", "heart", {"local_epochs": 1, "public_size": 64})
    _, scenario, _ = prepare(make_plan(experiment))
    client = scenario.clients[1]
    trained = load_trained(tmp_path / "run", client.name)
    assert client.train.transform is not None
    inputs = client.train.inputs
    assert torch.equal(trained.preprocessing.transform(inputs), client.train.transform(inputs))
    other = load_trained(tmp_path / "run", scenario.clients[0].name)
    assert not torch.equal(other.preprocessing.transform(inputs), trained.preprocessing.transform(inputs))
    file = tmp_path / "new.csv"
    columns = [column.name for column in client.train.columns]  # type: ignore[attr-defined]
    file.write_text(",".join(columns[:-1]) + "\n" + ",".join("1" for _ in columns[:-1]) + "\n")
    with pytest.raises(UsageError, match=f"the model needs the columns {columns[-1]}"):
        trained.preprocessing.read(file)


def test_the_best_round_is_that_of_the_result(tmp_path: Path) -> None:
    settings = {"local_epochs": 1, "validation": 0.3, "local_lr": 0.05}
    experiment = finished(tmp_path / "run", "solo", "heart", settings)
    _, scenario, _ = prepare(make_plan(experiment))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for entry, client in zip(result["best"], scenario.clients, strict=True):
        trained = load_trained(tmp_path / "run", client.name, best=True)
        assert trained.round == entry["round"] + 1
        reported = events(experiment)[entry["round"]]["accuracy"][result["best"].index(entry)]
        for accuracy, test in zip(reported, scenario.tests.values(), strict=True):
            right = trained.probabilities(test.inputs).argmax(dim=1) == test.labels
            assert 100 * right.double().mean().item() == pytest.approx(accuracy, abs=1e-9)


def test_load_model_gives_a_module(shapes: Path, tmp_path: Path) -> None:
    finished(tmp_path / "run", "solo", str(shapes), IMAGES, models="simple_cnn@4")
    names = [c["name"] for c in json.loads((tmp_path / "run" / "models.json").read_text())["clients"]]
    model = fedchoir.load_model(tmp_path / "run", names[0])
    assert not model.training
    assert model(torch.zeros(2, 3, 16, 16)).shape[0] == 2


def test_own_code_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "project")
    code = "from torch import nn\n\n\ndef net(num_classes, input_shape):\n"
    code += "    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.ReLU(), nn.Linear(4, num_classes))\n"
    Path("far_net.py").write_text(code)
    finished(Path("run"), "solo", "heart", {"local_epochs": 1}, models="far_net.py:net")
    monkeypatch.chdir(tmp_path / "elsewhere")
    trained = load_trained(tmp_path / "project" / "run", "hungary")
    assert trained.client.model == f"{tmp_path}/project/far_net.py:net"
    assert description(trained, "torch", "m.pt")["architecture"] == "far_net.py:net"  # a card has other readers
    Path("far_net.py").write_text(code)
    (tmp_path / "project" / "far_net.py").unlink()  # the run was moved: as before, the working folder is searched
    assert load_trained(tmp_path / "project" / "run", "hungary").client.model == "far_net.py:net"


def test_predictions_from_files_and_from_memory(tmp_path: Path) -> None:
    finished(tmp_path / "run", "solo", "heart", {"local_epochs": 1}, models="logistic,mlp@4")
    predictor = fedchoir.load_predictor(tmp_path / "run", "hungary")
    _, test = heart.hospital("hungary")
    test.to_csv(tmp_path / "new.csv", index=False)
    found = predictor.predict(tmp_path / "new.csv")
    assert found.samples == [str(i) for i in range(len(test))]
    assert found.classes == ("absent", "present")
    assert found.labels == [found.classes[k] for k in found.probabilities.argmax(dim=1)]
    for same in (test, store(test, heart.COLUMNS, "test"), store(test, heart.COLUMNS, "test").double().numpy()):
        assert torch.equal(predictor.predict(same).probabilities, found.probabilities)
    with pytest.raises(UsageError, match="new samples: the model needs the columns chol, which the DataFrame does not"):
        predictor.predict(test.drop(columns="chol"))
    with pytest.raises(UsageError, match="a list given; wanted a folder or file, a pandas DataFrame or an array"):
        predictor.predict([1, 2])
    with pytest.raises(UsageError, match="new samples: samples of 3, but the model was trained on samples of 10"):
        predictor.predict(torch.zeros(2, 3))
    with pytest.raises(UsageError, match=r"there is no folder or file .*none\.csv"):
        predictor.predict(str(tmp_path / "none.csv"))


def test_predictions_of_texts_and_of_whole_numbers() -> None:
    tokens = load_preprocessing(
        describe_preprocessing(TextSet(torch.ones(1, 4, dtype=torch.int64), NONE)), DataOptions()
    )
    about = describe_preprocessing(ImageSet(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), NONE))
    images = load_preprocessing(about, DataOptions(image_size=16))
    names, ids = tokens.samples(["good", "not good"], {})
    assert (names, ids.count_nonzero(dim=1).tolist()) == (["0", "1"], [1, 2])
    for wrong in (["good", 3], 5):
        with pytest.raises(UsageError, match="wanted a folder or file, a list of texts or an array"):
            tokens.samples(wrong, {})
    with pytest.raises(UsageError, match="new samples: none are given"):
        tokens.samples([], {})
    assert images.samples(np.full((2, 3, 16, 16), 255), about)[1].dtype == torch.uint8
    for values in (torch.rand(2, 3, 16, 16), np.full((2, 3, 16, 16), 256), np.array(["a"]), torch.tensor(1)):
        with pytest.raises(UsageError, match=r"new samples: (an array of .*; wanted uint8|one number given)"):
            images.samples(values, about)
    with pytest.raises(UsageError, match="wanted a folder or file or an array"):
        images.samples(None, about)


def test_wrong_requests_have_one_line(shapes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(UsageError, match=r"has no models\.json"):
        load_trained(tmp_path)
    finished(run, "solo", str(shapes), IMAGES, models="simple_cnn@4")
    with pytest.raises(UsageError, match="--client is missing; its clients are"):
        load_trained(run)
    with pytest.raises(UsageError, match="has no client 'nobody'"):
        load_trained(run, "nobody")
    name = json.loads((run / "models.json").read_text())["clients"][0]["name"]
    with pytest.raises(UsageError, match=f"has no best round of {name}: run with --set validation=0.1"):
        load_trained(run, name, best=True)
    content = json.loads((run / "models.json").read_text())
    content["clients"][0]["model"] = "simple_cnn@8"
    (run / "models.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"do not fit the model that models\.json describes"):
        load_trained(run, name)
    (run / "models.json").write_text("{}")
    with pytest.raises(UsageError, match=r"models\.json is damaged"):
        load_trained(run, name)
