"""The attacks that a site mounts on its own model before it joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import draw_shapes

from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.leakage import attack_synthetic, describe_leakage, membership, reconstruction, rehearse
from fedchoir.deploy.site_data import LocalSite
from fedchoir.payload import Payload

SETTINGS = {"image_size": 16, "local_batch": 8, "local_lr": 0.01, "public_size": 32, "public_batch": 16}


@pytest.fixture
def site(tmp_path: Path) -> LocalSite:
    rng = np.random.default_rng(0)
    train, test = draw_shapes(rng, 24, (1, 0.1, 0.1), 60), draw_shapes(rng, 24, (1, 0.1, 0.1), 60)
    arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "public.npz", x=rng.integers(0, 256, (32, 16, 16, 3), dtype=np.uint8))
    public = str(tmp_path / "public.npz")
    return LocalSite("a", "mlp", tmp_path / "a.npz", tmp_path / "work", public=public, device="cpu")


def federation(method: str, models: tuple[str, str] = ("mlp", "mlp"), **settings: Any) -> FederationFile:
    sites = [{"name": name, "model": model, "key": f"{name}.pub"} for name, model in zip("ab", models, strict=True)]
    values = {"method": method, "public": "public.npz", "rounds": 3, "sites": sites, "settings": SETTINGS | settings}
    return FederationFile.model_validate(values)


def test_weights_of_a_perceptron_give_samples_away(site: LocalSite) -> None:
    rehearsal = rehearse(federation("fedavg", local_batch=24), site, epochs=1)
    found = reconstruction(rehearsal)
    assert found is not None
    assert found.samples == 24
    assert found.best > 20
    assert found.best > found.chance
    ((who, auc),) = membership(rehearsal)
    assert who == "someone who has your model"
    assert 0 <= auc.low <= auc.value <= auc.high <= 1


def test_noise_hides_them(site: LocalSite) -> None:
    pytest.importorskip("opacus")
    found = reconstruction(rehearse(federation("fedavg", local_batch=24, dp_noise=1.0), site, epochs=1))
    assert found is not None
    assert found.best < 15


def test_methods_without_weights_are_attacked_through_their_outputs(site: LocalSite) -> None:
    lines = list(describe_leakage(federation("fedmd", models=("mlp", "simple_cnn@4")), site, epochs=2))
    text = "\n".join(lines)
    assert "someone who has what you send about public samples: 0." in text
    assert "Not tried: this method sends no weights" in text
    assert "95 %" in text


SYNTHETIC = {"per_class": 2, "condense_steps": 20, "condense_lr": 0.1, "network_width": 8}


def test_synthetic_samples_are_attacked_before_they_are_sent(site: LocalSite) -> None:
    planned = federation("choir", models=("mlp", "simple_cnn@4"), **SYNTHETIC)
    text = "\n".join(describe_leakage(planned, site, epochs=1))
    assert "do the synthetic samples that you would send show single private ones?" in text
    assert "training samples told from test samples by class means: 0." in text
    assert "of the distance between private neighbours, no copies" in text
    found = attack_synthetic(rehearse(planned, site, epochs=1))
    assert found is not None
    assert found.distance > 0.5
    assert found.best < 30


def test_copies_of_private_samples_are_found(site: LocalSite) -> None:
    rehearsal = rehearse(federation("choir", models=("mlp", "simple_cnn@4"), **SYNTHETIC), site, epochs=1)
    private, sent = rehearsal.client.private, rehearsal.synthetic
    assert sent is not None
    copies = torch.stack([private.inputs[private.labels == c][:2] for c in range(4)])
    rehearsal.synthetic = Payload({**sent, "condensed": copies})
    found = attack_synthetic(rehearsal)
    assert found is not None
    assert found.distance < 0.01
    assert found.best > 60


def test_methods_without_synthetic_samples_have_nothing_to_attack(site: LocalSite) -> None:
    assert attack_synthetic(rehearse(federation("fedmd", models=("mlp", "simple_cnn@4")), site, epochs=1)) is None


def test_texts_are_searched_for_private_runs_and_rare_tokens(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(30)])
    rows = [
        {"text": " ".join([f"class{i % 2}", *rng.choice(words, 12)]), "label": f"c{i % 2}", "split": split}
        for split in ("train", "test")
        for i in range(40)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = LocalSite("a", "bag_of_embeddings@8", tmp_path / "a.jsonl", tmp_path / "work", device="cpu")
    agreed = {"modality": "text", "vocabulary": 256, "max_length": 16, "local_lr": 0.01, "per_class": 3}
    sites = [
        {"name": name, "model": model, "key": f"{name}.pub"} for name, model in (("a", site.model), ("b", "bigru@8"))
    ]
    planned = FederationFile.model_validate({"method": "choir", "rounds": 2, "sites": sites, "settings": agreed})
    found = attack_synthetic(rehearse(planned, site, epochs=1))
    assert found is not None
    assert found.best <= 3
    assert found.rarest is not None
    assert found.rarest >= 5
    report = "\n".join(describe_leakage(planned, site, epochs=1))
    assert f"most tokens in a row of a private text: {found.best:.0f}; your test texts reach" in report
    assert f"every token that you would send is in {found.rarest} or more of your texts of its class" in report
    assert " dB" not in report
