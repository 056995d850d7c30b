"""A site against a dishonest server: it carries out what it agreed to, in order and once, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.in_process import InProcessTransport, run_on_sites

from fedchoir import Experiment
from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.config import FederationFile
from fedchoir.engines.messages import Envelope, MessageError

Message = tuple[dict[str, Any], list[bytes]]
Attack = Callable[[dict[str, Any]], None]


class Site:
    """Site 0 of a federation whose honest messages were recorded: they can be replayed, with or without changes."""

    def __init__(self, worker: ClientWorker, messages: list[Message], folder: Path) -> None:
        self.messages = messages
        plan = messages[0][0]["plan"]
        spec = plan["task"]
        agreed = Agreement(
            plan["method"], plan["settings"], {}, spec["rounds"], spec["seed"], False,
            tuple(client["name"] for client in spec["clients"]),
        )  # fmt: skip
        self.worker = replace(worker, folder=folder, agreement=agreed)

    def handle(self, header: dict[str, Any], blobs: list[bytes]) -> Envelope:
        return self.worker.handle(json.dumps(header), blobs)

    def replay(self, count: int) -> None:
        for header, blobs in self.messages[:count]:
            self.handle(header, blobs)

    def attacked(self, number: int, attack: Attack) -> Message:
        """Message ``number``, changed by a dishonest server."""
        header, blobs = self.messages[number]
        changed = json.loads(json.dumps(header))
        attack(changed)
        return changed, blobs


RECORDED: list[tuple[ClientWorker, list[Message]]] = []  # one honest run serves all tests


@pytest.fixture
def site(small: Callable[..., Experiment], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    if not RECORDED:
        messages: list[Message] = []

        def record(transport: InProcessTransport) -> None:
            honest = transport.workers[0]
            RECORDED.append((honest, messages))
            transport.workers[0] = replace(honest)

            def recording(text: str, blobs: list[bytes]) -> Envelope:
                messages.append((json.loads(text), list(blobs)))
                return honest.handle(text, blobs)

            transport.workers[0].handle = recording  # type: ignore[method-assign]

        run_on_sites(small("fccl+", rounds=2), tmp_path_factory.mktemp("honest"), change=record)
    return Site(*RECORDED[0], tmp_path / "attacked")


def work(name: str, kind: str = "exchange", index: int = 0, **more: Any) -> dict[str, Any]:
    return {"round": index, "kind": kind, "name": name, "batches": [], "received": None, "dims": {}, **more}


def ask(*items: dict[str, Any]) -> Attack:
    return lambda header: header.update(work=list(items))


def setting(name: str, value: Any) -> Attack:
    return lambda header: header["plan"]["settings"].update({name: value})


def spec(name: str, value: Any) -> Attack:
    return lambda header: header["plan"]["task"].update({name: value})


def test_honest_messages_are_carried_out(site: Site) -> None:
    site.replay(len(site.messages))


ATTACKS: dict[str, tuple[Attack, str]] = {
    "all weights of a model that is never shared": (ask(work("upload")), "'upload' is not what fccl+ does next"),
    "weights from the server": (ask(work("download", "step")), "'download' is not what fccl+ does next"),
    "training outside the agreed epochs": (ask(work("pretrain", "step")), "'pretrain' is not what fccl+ does next"),
    "the local phase before the public one": (
        ask(work("local_update", "step"), work("share", batches=[[0, 0, 0, 0, 16]])), "is not what fccl+ does next",
    ),
    "another public batch": (ask(work("share", batches=[[0, 0, 0, 3, 1]])), "'share' is not what fccl+ does next"),
    "one image at a time": (
        ask(*(work("share", batches=[[0, 0, k, k, 1]]) for k in range(16))), "'share' is not what fccl+ does next",
    ),
    "other dimensions": (ask(work("share", batches=[[0, 0, 0, 0, 16]], dims={"C": 1})), "is not what fccl+ does next"),
    "a private function": (ask(work("_initial_model")), "has no function '_initial_model'"),
    "a function of another object": (ask(work("__init__")), "has no function '__init__'"),
    "a round that is not agreed": (ask(work("share", index=7)), "not in the agreed 2 rounds"),
    "a round before the first": (ask(work("share", index=-1)), "not in the agreed 2 rounds"),
    "another method": (lambda header: header["plan"].update(method="fedavg"), "the agreed file has 'fccl+'"),
    "no noise": (setting("dp_noise", 5.0), "dp_noise = 5.0, and the agreed file has 0.0"),
    "one epoch": (setting("local_epochs", 1), "local_epochs = 1, and the agreed file has 2"),
    "other augmentation": (setting("private_augment", "strong"), "private_augment = 'strong'"),
    "one image per batch": (setting("public_batch", 2), "public_batch = 2, and the agreed file has 16"),
    "an option of nobody": (setting("backdoor", True), "backdoor = True, and the agreed file has None"),
    "the private images as the public set": (
        lambda header: header["plan"].update(public={"name": "images.npz", "digest": "0" * 64}), "another public set",
    ),
    "more rounds": (spec("rounds", 1000), "rounds = 1000, and the agreed file has 2"),
    "more public images than there are": (spec("public_size", 10**12), "this site has 40"),
    "few public images": (spec("public_size", 2), "this site has 40"),
    "another seed": (spec("seed", 1), "seed = 1, and the agreed file has 0"),
    "an invented site": (
        lambda header: header["plan"]["task"]["clients"].append(dict(header["plan"]["task"]["clients"][0], name="x")),
        "the server gives sites",
    ),
    "a file outside the work folder": (lambda header: header.update(run="../../etc"), "not the name of a run"),
    "a state that was never reached": (lambda header: header.update(base=99), "has no state after message 99"),
}  # fmt: skip


@pytest.mark.parametrize(("attack", "why"), ATTACKS.values(), ids=list(ATTACKS))
def test_an_attack_is_refused_by_name_and_changes_nothing(site: Site, attack: Attack, why: str) -> None:
    with pytest.raises(MessageError) as refused:
        site.handle(*site.attacked(0, attack))
    assert why in str(refused.value)
    assert not list(site.worker.folder.rglob("state-*"))
    site.replay(len(site.messages))  # the honest run is not disturbed


def test_no_exchange_is_carried_out_twice(site: Site) -> None:
    """Asking again, from the state after the first time, is refused; so is going back within a round."""
    site.replay(2)
    header, blobs = site.messages[1]
    with pytest.raises(MessageError, match="is not what fccl\\+ does next"):
        site.handle({**header, "base": header["serial"], "serial": header["serial"] + 1}, blobs)


def test_rounds_go_forward_only(site: Site) -> None:
    site.replay(len(site.messages))
    last = site.messages[-1][0]["serial"]
    header, blobs = site.messages[0]
    with pytest.raises(MessageError, match="refused"):
        site.handle({**header, "base": last, "serial": last + 1}, blobs)


def test_the_agreement_is_the_federations_file() -> None:
    sites = [{"name": "a"}, {"name": "b"}]
    file = FederationFile.model_validate(
        {"method": "fccl+", "public": "photos", "sites": sites, "rounds": 5, "settings": {"local_epochs": 3}}
    )
    agreement = Agreement.of(file)
    assert (agreement.method, agreement.rounds, agreement.sites) == ("fccl+", 5, ("a", "b"))
    assert agreement.settings["local_epochs"] == 3
    honest = {"method": "fccl+", "settings": dict(agreement.settings), "public": dict(agreement.public or {})}
    agreement.check_plan(honest)
    agreement.check_plan({**honest, "public": {**honest["public"], "digest": "0" * 64}})
    with pytest.raises(MessageError, match="another public set"):
        agreement.check_plan({**honest, "public": {**honest["public"], "name": "/srv/private.npz"}})
