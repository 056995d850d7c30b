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
from fedchoir.deploy.policy import Policy
from fedchoir.engines.headers import InfoHeader
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.payload import Payload

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
            models=tuple(client["model"] for client in spec["clients"]), classes=tuple(spec["classes"]),
        )  # fmt: skip
        policy = Policy(federation=Path("agreed.toml"), metrics=True)
        vars(policy).update(agreement=agreed, federation_digest="0" * 64)  # as if it was read from the file
        self.worker = replace(worker, folder=folder, policy=policy)

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
        ask(*(work("share", batches=[[0, 0, k, k, 1]]) for k in range(16))),
        "'share' is an exchange, and more work follows it",
    ),
    "other dimensions": (ask(work("share", batches=[[0, 0, 0, 0, 16]], dims={"C": 1})), "is not what fccl+ does next"),
    "a private function": (ask(work("_initial_model")), "has no function '_initial_model'"),
    "a function of another object": (ask(work("__init__")), "has no function '__init__'"),
    "a round that is not agreed": (ask(work("share", index=7)), "not in the agreed 2 rounds"),
    "a round before the first": (ask(work("share", index=-1)), "the request is malformed: work.0.round"),
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
    "more public images than there are": (spec("public_size", 10**8), "this site has 40"),
    "few public images": (spec("public_size", 2), "this site has 40"),
    "another seed": (spec("seed", 1), "seed = 1, and the agreed file has 0"),
    "an invented site": (
        lambda header: header["plan"]["task"]["clients"].append(dict(header["plan"]["task"]["clients"][0], name="x")),
        "the server gives sites",
    ),
    "a file outside the work folder": (lambda header: header.update(run="../../etc"), "the request is malformed: run"),
    "a state that was never reached": (lambda header: header.update(base=99), "there is no state after message 99"),
    "two evaluations": (
        ask({"round": 0, "evaluate": None}, {"round": 0, "evaluate": None}), "an evaluation is not what fccl+ does next"
    ),
    "a site's model for all, so that weights would be averaged": (
        lambda header: [c.update(model=header["plan"]["task"]["clients"][0]["model"])
                        for c in header["plan"]["task"]["clients"]], "and the agreed file has '",
    ),
    "sites that join later": (spec("joins", [0, 1, 1]), "joins = (0, 1, 1), and the agreed file has ()"),
    "another client's place": (lambda header: header.update(client=7), "there is no client 7 among 3"),
}  # fmt: skip


@pytest.mark.parametrize(("attack", "why"), ATTACKS.values(), ids=list(ATTACKS))
def test_an_attack_is_refused_by_name_and_changes_nothing(site: Site, attack: Attack, why: str) -> None:
    with pytest.raises(MessageError) as refused:
        site.handle(*site.attacked(0, attack))
    assert why in str(refused.value)
    assert not list(site.worker.folder.rglob("state-*"))
    site.replay(len(site.messages))  # the honest run is not disturbed


def other_content(site: Site, number: int, **changes: Any) -> Message:
    """Message ``number`` again, with an aggregate that lacks one client: its logits are those of the others."""
    header, blobs = site.messages[number]
    payload = Payload.from_bytes(blobs[0])
    changed = Payload({name: tensor * 1.5 for name, tensor in payload.items()}, scalars=payload.scalars)
    return {**header, **changes}, [changed.to_bytes(), *blobs[1:]]


def test_the_same_message_gets_the_same_reply_and_another_one_for_its_position_none(site: Site) -> None:
    """A dishonest server asks the same exchange twice, with and without a client in the aggregate before it. From the
    difference of two answers it would learn what that client sent."""
    site.replay(1)
    header, blobs = site.messages[1]
    first = site.handle(header, blobs)
    for again in ({}, {"serial": 50}, {"base": 0}, {"serial": 50, "base": header["serial"]}):
        assert site.handle({**header, **again}, blobs).blobs == first.blobs
    for again in ({}, {"serial": 50}):
        with pytest.raises(MessageError, match=r"refused: round 1 exchange share was answered before"):
            site.handle(*other_content(site, 1, **again))
    with pytest.raises(MessageError, match="is not what fccl\\+ does next"):
        site.handle(*other_content(site, 1, base=header["serial"], serial=50))


def test_rounds_go_forward_only(site: Site) -> None:
    site.replay(len(site.messages))
    for number in range(1, len(site.messages)):
        for base in (site.messages[number][0]["base"], site.messages[-1][0]["serial"]):
            with pytest.raises(MessageError, match=r"refused|there is no state"):  # old states are deleted
                site.handle(*other_content(site, number, base=base, serial=50))


def test_a_site_whose_reply_was_lost_answers_the_next_exchange_from_the_state_before(site: Site) -> None:
    """The server goes on without it: the steps that it missed come again, and then another exchange."""
    site.replay(2)
    lost, blobs = site.messages[1]
    following, more = site.messages[2]
    steps = [item for item in lost["work"] if item["kind"] == "step"]
    shifted = [{**item, "received": [n + len(blobs) for n in item["received"]] if item.get("received") else None}
               for item in following["work"]]  # fmt: skip
    repeated = {**following, "base": lost["base"], "work": [*steps, *shifted]}
    reply = site.handle(repeated, [*blobs, *more])
    assert reply.blobs


def test_the_agreement_is_the_federations_file() -> None:
    sites = [{"name": "a"}, {"name": "b"}]
    file = FederationFile.model_validate(
        {"method": "fccl+", "public": "photos", "sites": sites, "rounds": 5, "settings": {"local_epochs": 3}}
    )
    agreement = Agreement.of(file)
    assert (agreement.method, agreement.rounds, agreement.sites) == ("fccl+", 5, ("a", "b"))
    assert agreement.settings["local_epochs"] == 3
    public = dict(agreement.public or {})
    honest = InfoHeader(method="fccl+", settings=dict(agreement.settings), public=public)
    agreement.check_request(honest)
    agreement.check_request(honest.model_copy(update={"public": {**public, "digest": "0" * 64}}))
    with pytest.raises(MessageError, match="another public set"):
        agreement.check_request(honest.model_copy(update={"public": {**public, "name": "/srv/private.npz"}}))
