"""What `federation show` says is what a run sends: the same names, and the same number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import run_folder

from fedchoir import Experiment, methods, run
from fedchoir.core.result import read_events
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.inspection import REVEALS, describe_federation, open_method, sent_each_round
from fedchoir.deploy.transport import SiteInfo
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare


def federation(**changes: Any) -> FederationFile:
    models = changes.pop("models", ("mlp", "mlp", "mlp"))
    sites = [{"name": name, "model": model, "key": f"{name}.pub"} for name, model in zip("abc", models, strict=True)]
    values = {"method": "fedavg", "rounds": 3, "sites": sites, "settings": {"image_size": 16}, **changes}
    return FederationFile.model_validate(values)


def described(**changes: Any) -> str:
    file = federation(**changes)
    return "\n".join(describe_federation(file, open_method(file, "mlp")))


@pytest.mark.parametrize("name", ["fedavg", "fccl+", "fedmd", "fedproc", "solo", "fbcl", "fedbn"])
def test_the_announced_bytes_are_those_of_a_run(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=2)
    run(experiment)
    sent = [event["bytes_up"] for event in read_events(run_folder(experiment) / "events.jsonl")]
    method, _, _ = prepare(make_plan(experiment))
    announced = [sum(s.bytes for s in each) for each in sent_each_round(method)]
    assert [count * len(method.spec.clients) for count in announced] == sent


def test_the_announced_bytes_are_those_of_each_clients_width(small: Callable[..., Experiment]) -> None:
    experiment = small("heterofl with three widths", rounds=2)
    run(experiment)
    sent = [event["bytes_up"] for event in read_events(run_folder(experiment) / "events.jsonl")]
    method, _, _ = prepare(make_plan(experiment))
    announced = [[sum(s.bytes for s in each) for each in sent_each_round(method, k)] for k in range(3)]
    assert [sum(counts) for counts in zip(*announced, strict=True)] == sent
    assert len({counts[0] for counts in announced}) == 3


def test_what_stays_at_a_site_is_not_described_as_sent() -> None:
    text = described(method="fedbn", models=("resnet10@4",) * 3)
    (line,) = [line for line in text.splitlines() if "upload:" in line][:1]
    assert "weights" in line
    assert "bn1" not in text


@pytest.mark.parametrize("name", sorted(methods.registry()))
def test_every_method_is_described(name: str) -> None:
    needs = methods.get(name).needs_public
    text = described(method=name, public="photos" if needs else None, settings={"image_size": 16, "public_size": 64})
    assert "What your site sends" in text
    assert ("no payload" in text) or any(words in text for words in REVEALS.values())


def test_weights_public_outputs_and_protections_in_plain_words() -> None:
    text = described()
    assert "upload: weights" in text
    assert REVEALS["weights"] in text
    assert "every payload of your site, by itself" in text
    assert "the network: nobody (TLS)" in text
    settings = {"dp_noise": 1.0, "public_size": 64}
    text = described(
        method="fedmd", public="photos", secure=True, settings=settings, models=("mlp", "mlp", "simple_cnn@4")
    )
    assert "share: logits, 64×10, 2.5 KiB (public outputs)" in text
    assert "in the whole run: 7.5 KiB" in text
    assert REVEALS["weights"] not in text
    assert "only sums over sites, while it follows the protocol" in text
    assert "still single out your payload" in text
    assert "differential privacy: noise 1, clipping at 1, δ = 1e-05" in text
    assert "training losses and accuracies stay at your site" in text


@pytest.mark.parametrize(("name", "payload"), [("rcfl", "scores"), ("rcfl", "weights"), ("selective-fd", "selected")])
def test_statistics_of_private_samples_are_not_called_outputs(name: str, payload: str) -> None:
    settings = {"image_size": 16, "public_size": 64}
    text = described(method=name, public="photos", models=("mlp", "mlp", "simple_cnn@4"), settings=settings)
    (line,) = [line for line in text.splitlines() if f"share: {payload}," in line]
    assert line.endswith("(public outputs with private statistics)")
    assert REVEALS["public outputs with private statistics"] in text
    assert REVEALS["public outputs"] not in text


def test_everything_that_leaves_before_a_run_is_listed() -> None:
    words = {
        "name": "its name", "model": "and model", "train": "numbers of training", "test": "test samples",
        "classes": "class names", "public": "digest and size of its public set", "inputs": "the shape of samples",
        "versions": "versions of packages", "free": "free disk space",
    }  # fmt: skip
    assert set(words) == set(SiteInfo.model_fields)
    text = described()
    before = text[text.index("before the run") : text.index("in every round")]
    assert [word for word in words.values() if word not in before] == []


def test_a_site_that_is_drawn_for_some_rounds_sends_in_those() -> None:
    file = federation(rounds=6, settings={"image_size": 16, "fraction": 0.34})
    rounds = list(sent_each_round(open_method(file, "mlp")))
    assert 0 < sum(map(bool, rounds)) < 6


def test_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    described()
    assert not list(tmp_path.iterdir())


def test_models_that_the_file_leaves_open_are_taken_to_be_those_of_the_site() -> None:
    text = described(method="fedmd", public="photos", models=("mlp", None, None))
    assert "as if your model were also that of b, c: the file does not name theirs" in text
    assert "and no weights are averaged: the file would have to name all models, or to set average" in text
    assert "upload: weights" not in text
    agreed = {"image_size": 16, "average": "before-local"}
    text = described(method="fedmd", public="photos", models=("mlp", None, None), settings=agreed)
    assert "upload: weights" in text
    assert "no weights are averaged" not in text
    assert "upload: weights" in described(method="fedmd", public="photos")  # all are named, and alike
    named = described(method="fedmd", public="photos", models=("mlp", "resnet10@4", "simple_cnn@4"))
    assert "as if" not in named
    assert "upload: weights" not in named
