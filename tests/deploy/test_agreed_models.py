"""A server that lies about the other sites' models gets no weights of a site that agreed to send outputs.

Methods with public samples average weights where all models are alike. Only the server knows the other sites, so a
site must not believe it what they have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity
from tests.deploy_e2e.adversary import FLOWER_RUN, NAMES, DishonestServer

from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.config import FederationFile
from fedchoir.engines.messages import MessageError
from fedchoir.experiments.config import make_params
from fedchoir.methods import get
from fedchoir.payload import Payload

UPLOAD = {"round": 0, "kind": "exchange", "name": "upload", "batches": [], "received": None, "dims": {}}
OPEN = [{"name": name, "key": f"keys/{name}.pub"} for name in NAMES]


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_task_id", 1), ("_run_id", FLOWER_RUN), ("_node_id", 0)):
        monkeypatch.setattr(TaskIdentity, name, value)


def attack(folder: Path, **changes: Any) -> Payload:
    """What the first site uploads when the server replays an honest run and claims that all sites have its model."""
    honest = DishonestServer.start(folder / "honest", **changes)
    assert not any(event["left_out"] for event in honest.run())
    attacked = DishonestServer.start(folder / "attacked", **changes)
    for header, blobs in honest.recorded:
        lie = json.loads(json.dumps(header))
        for client in lie["plan"]["task"]["clients"]:
            client["model"] = "mlp"
        names = [item.get("name") for item in lie["work"]]
        if "local_update" in names:  # weights are averaged before it
            lie["work"] = [*lie["work"][: names.index("local_update")], UPLOAD]
            return Payload.from_bytes(attacked.ask(lie, blobs).blobs[0])
        attacked.ask(lie, blobs)
    raise AssertionError("the honest run has no local update")


def test_models_that_the_file_names_are_compared(tmp_path: Path) -> None:
    why = "refused: the server gives green the model 'mlp', and the agreed file has 'simple_cnn@4'"
    with pytest.raises(MessageError, match=why):
        attack(tmp_path)


def test_models_that_the_file_leaves_open_average_no_weights(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match=r"refused: exchange 'upload' is not what fccl\+ does next in round 1"):
        attack(tmp_path, sites=OPEN)


def test_sites_that_agree_to_send_weights_still_can(tmp_path: Path) -> None:
    """The attack itself works: the file says that weights are averaged, and the server claims equal models."""
    assert "weights/" in " ".join(attack(tmp_path, sites=OPEN, settings={"average": "before-local"}))


def federation(method: str, models: tuple[str | None, ...], **settings: Any) -> FederationFile:
    sites = [{"name": name, "model": model} for name, model in zip("abc", models, strict=True)]
    return FederationFile.model_validate({"method": method, "public": "photos", "sites": sites, "settings": settings})


@pytest.mark.parametrize(
    ("method", "models", "settings", "average"),
    [
        ("fccl+", ("mlp",) * 3, {}, "auto"),
        ("fccl+", ("mlp", None, "mlp"), {}, "never"),
        ("fccl+", ("mlp", None, "mlp"), {"average": "auto"}, "never"),
        ("fccl+", (None,) * 3, {"average": "after-local"}, "after-local"),
        ("fpl", (None,) * 3, {}, "never"),
        ("fedavg", (None,) * 3, {}, "auto"),  # the method itself says that weights are sent
    ],
)
def test_server_and_site_derive_from_one_file_whether_weights_are_averaged(
    method: str, models: tuple[str | None, ...], settings: dict[str, Any], average: str
) -> None:
    file = federation(method, models, **settings)
    assert file.plan().params.average == average
    assert Agreement.of(file).settings["average"] == average
    assert make_params(get(method), None, "fixed", settings).average == settings.get("average", "auto")


def test_the_agreement_names_models_as_messages_do() -> None:
    file = federation("fccl+", ("mlp", None, "/srv/nets.py:build[weights=w.safetensors]"))
    assert Agreement.of(file).models == ("mlp", None, "custom:nets.build")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda task: task.update(classes=["a", "b"]), "classes = "),
        (lambda task: task.update(joins=[0, 1, 1]), "joins = "),
        (lambda task: task.update(held_out="x"), "held_out = 'x'"),
        (lambda task: task.update(top_k=5), "top_k = 5"),
    ],
)
def test_everything_that_a_sequence_depends_on_is_compared(
    change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    server = DishonestServer.start(tmp_path, classes=["0", "1", "2", "3"], rounds=1, settings={"sync": "epoch"})
    list(server.run())
    header, blobs = server.recorded[0]
    lie = json.loads(json.dumps(header))
    change(lie["plan"]["task"])
    with pytest.raises(MessageError, match=f"refused: the server gives {why}"):
        server.ask(lie, blobs)
