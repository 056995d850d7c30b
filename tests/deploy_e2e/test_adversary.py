"""Hostile messages from a server and from a site: each is refused by name, none ends a process or is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from tests.deploy.test_transport import FakeGrid, info, make
from tests.deploy_e2e.adversary import FLOWER_RUN, DishonestServer, Transport
from tests.deploy_e2e.hostile_messages import COUNT, FROM_SERVER, INFO, REPLIES
from torch import nn

from fedchoir.deploy import transport as module
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.models import build
from fedchoir.payload import Payload, state_payload
from fedchoir.privacy.noise import SecureRandom
from fedchoir.privacy.reconstruction import best_psnr, from_first_layer


@pytest.fixture(scope="module", autouse=True)
def identity() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_task_id", 1), ("_run_id", FLOWER_RUN), ("_node_id", 0)):
            patch.setattr(TaskIdentity, name, value)
        patch.setattr(module, "POLL_SECONDS", 0.01)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> DishonestServer:
    """A server whose nodes have not done anything yet, with the messages of an honest run to other nodes."""
    honest = DishonestServer.start(tmp_path_factory.mktemp("honest"))
    assert [event["left_out"] for event in honest.run()] == [[], []]
    attacked = DishonestServer.start(tmp_path_factory.mktemp("attacked"))
    attacked.recorded = honest.recorded
    return attacked


def test_sixty_messages() -> None:
    assert COUNT >= 60
    assert len(FROM_SERVER) >= 40
    assert len(INFO) + len(REPLIES) >= 20


@pytest.mark.parametrize("name", FROM_SERVER)
def test_a_node_refuses(name: str, server: DishonestServer) -> None:
    attack, why = FROM_SERVER[name]
    with pytest.raises(MessageError) as refused:
        attack(server)
    assert why in str(refused.value)
    assert str(refused.value).isprintable()
    assert str(server.folder) not in str(refused.value)  # a reason names no file of the site
    assert not list(server.folder.glob("work-*/state/*/state-*"))
    assert not list(server.folder.glob("work-*/state/*/reply-*"))


def test_afterwards_the_honest_run_goes_on(server: DishonestServer) -> None:
    server.recorded = []
    assert [event["left_out"] for event in server.run()] == [[], []]


@pytest.mark.parametrize("name", INFO)
def test_the_server_refuses_information(name: str) -> None:
    changes, why = INFO[name]
    grid = FakeGrid({1, 2})
    header = {key: value for key, value in {**info("a"), **changes}.items() if value is not ...}
    grid.reply = lambda node, message: header if node == 1 else info("b")
    transport = make(grid)
    assert transport.register_sites() == ["b"]  # the honest site is not disturbed
    assert why in transport.refused[1]
    assert transport.refused[1].isprintable()


def test_the_server_leaves_hostile_replies_out_and_goes_on(tmp_path: Path) -> None:
    """The third site lies in every exchange of a run, each time in another way."""
    names, told = iter(REPLIES), []

    def lie(node: int, reply: Envelope) -> Envelope:
        name = next(names, None) if node == 2 and reply.blobs else None
        if name is None:
            return reply
        told.append(name)
        hostile = REPLIES[name][0](reply)
        return Envelope.read(hostile.text(), hostile.blobs)

    server = DishonestServer.start(tmp_path, rounds=4)
    events = list(server.run(Transport(server, lie)))
    left_out = [out for event in events for out in event["left_out"]]
    assert told == list(REPLIES)
    assert len(events) == 4
    assert [out["client"] for out in left_out] == ["white"] * len(REPLIES)
    for name, out in zip(told, left_out, strict=True):
        assert REPLIES[name][1] in out["why"], name
        assert out["why"].isprintable()
    assert all(0 <= event["intra_avg"] <= 100 for event in events)


# -- the critical attacks that are more than one message ---------------------------------------------------------------


def test_losses_and_accuracies_do_not_leave_a_site_with_noise(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    policy: dict[str, Any] = {"metrics": "auto", "max_epsilon": 1e6}
    settings = {"dp_noise": 1.0, "sync": "epoch", "local_epochs": 1}
    server = DishonestServer.start(tmp_path, policy, method="fedmd", rounds=1, settings=settings)
    headers: list[dict[str, Any]] = []

    def keep(node: int, reply: Envelope) -> Envelope:
        headers.append(reply.header)
        return reply

    events = list(server.run(Transport(server, keep)))
    assert not any(event["left_out"] for event in events)
    assert headers
    assert [header["deferred"] for header in headers] == [{}] * len(headers)
    assert not any(any(event["losses"].values()) or event["intra_avg"] for event in events)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_imprint_weights_in_a_federation_that_agreed_to_send_weights(noise: float, tmp_path: Path) -> None:
    """Without noise a dishonest server sees images: docs/privacy.md says so. With noise it sees none."""
    pytest.importorskip("opacus")
    settings = {"dp_noise": noise, "local_epochs": 1, "local_batch": 48, "local_lr": 0.1, "optimizer": "sgd"}
    policy = {"max_epsilon": 1e6} if noise else {}
    server = DishonestServer.start(tmp_path, policy, models=("mlp",) * 3, method="fedavg", settings=settings)
    domain = server.nodes[0].site.domain(server.federation.plan().params)
    private = domain.train.transform(domain.train.inputs)
    shape, model = private.shape[1:], build("mlp", 4, domain.train.input_spec)
    before, uploads = imprint(model, private), []

    def tamper(header: dict[str, Any], blobs: list[bytes]) -> list[bytes]:
        sent = [item["received"] for item in header["work"] if item.get("name") == "download"]
        return [state_payload("weights", before).to_bytes() if n in sent else blob for n, blob in enumerate(blobs)]

    def keep(node: int, reply: Envelope) -> Envelope:
        if node == 0 and reply.blobs:
            uploads.append(Payload.from_bytes(reply.blobs[0]).under("weights"))
        return reply

    assert not any(event["left_out"] for event in server.run(Transport(server, keep, tamper)))
    update = {name: before[name] - weight for name, weight in uploads[1].items()}
    found = best_psnr(from_first_layer(model, update, shape), private)
    assert found < 15 if noise else found > 30


def imprint(model: nn.Module, private: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights whose first neurons have one direction and rising thresholds (Fowl et al., 2022)."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    name, layer = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear))
    size = private[0].numel()
    brightness = private.flatten(1).mean(1)
    state[f"{name}.weight"] = torch.full((layer.out_features, size), 1 / size)
    thresholds = torch.linspace(float(brightness.min()) - 0.01, float(brightness.max()), layer.out_features)
    state[f"{name}.bias"] = -thresholds
    return state


def test_noise_never_repeats() -> None:
    releases = {SecureRandom().normal((4,), 1.0).numpy().tobytes() for _ in range(10_000)}
    assert len(releases) == 10_000
    values = SecureRandom().normal((100_000,), 1.0)
    assert len(torch.unique(values)) == 100_000
