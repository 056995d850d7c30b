"""Results do not depend on the memory for client states or on which clients are active, and little is kept or built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.engines.many_clients import ManyClients
from tests.helpers import Stop, StopAfter, assert_same, equal

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.engines.local import client_pool
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import Payload


@pytest.mark.parametrize("name", list(methods.registry()))
def test_a_budget_of_zero_gives_the_same_numbers(name: str, small: Callable[..., Experiment]) -> None:
    """One client is active at a time and all other states are files."""
    plain, on_disk = small(name, "plain", rounds=2), small(name, "on-disk", rounds=2, state_budget="0")
    run(plain), run(on_disk)
    assert_same(plain, on_disk)
    assert not (on_disk.out / "state_cache").exists()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["feddc", "moon", "fccl+"])
def test_a_run_with_states_on_disk_is_killed_and_resumed(name: str, small: Callable[..., Experiment]) -> None:
    settings = {"fraction": 0.67}
    straight = small(name, "straight", rounds=4, settings=settings)
    killed = small(name, "killed", rounds=4, settings=settings, state_budget="0")
    run(straight)
    with pytest.raises(Stop):
        run(killed, observers=[StopAfter(1)])
    incomplete = killed.out / "state_cache" / "client-00000.safetensors"  # type: ignore[operator]
    incomplete.parent.mkdir(exist_ok=True)
    incomplete.write_bytes(b"of a process that was killed while it wrote")
    run(killed, resume=True)
    assert_same(straight, killed)


def test_own_models_survive_a_kill_if_they_are_evaluated(small: Callable[..., Experiment]) -> None:
    """FedAvg's clients start a round from the global model, so theirs are dropped unless they are evaluated."""
    settings = {"eval_model": "own", "local_epochs": 1}
    straight = small("fedavg", "straight", rounds=4, settings=settings)
    killed = small("fedavg", "killed", rounds=4, settings=settings, state_budget="0")
    run(straight)
    with pytest.raises(Stop):
        run(killed, observers=[StopAfter(1)])
    run(killed, resume=True)
    assert_same(straight, killed)


def test_the_budget_may_change_on_resume(small: Callable[..., Experiment]) -> None:
    first = small("feddc", rounds=2)
    with pytest.raises(Stop):
        run(first, observers=[StopAfter(0)])
    assert run(first.model_copy(update={"state_budget": "10KB"}), resume=True).rounds == 2


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """All clients that are built."""
    clients: list[Client] = []
    new = client_pool.new_client

    def build(*arguments: object, **options: object) -> Client:
        clients.append(new(*arguments, **options))  # type: ignore[arg-type]
        return clients[-1]

    monkeypatch.setattr(client_pool, "new_client", build)
    return clients


def test_clients_that_never_take_part_are_never_built(built: list[Client]) -> None:
    participants = {name for event in ManyClients(FedAvg, 1000).run_rounds(3) for name in event["clients"]}
    assert {client.name for client in built} <= participants | {"c0"}  # the first one evaluates the global model
    assert len(built) <= 16


def test_few_clients_stay_active_and_stateless_ones_leave_no_state(tmp_path: Path, built: list[Client]) -> None:
    federation = ManyClients(FedAvg, 2000, tmp_path, fraction=0.1)
    federation.run_rounds(3)
    assert sum(hasattr(client, "model") for client in built) == client_pool.MAX_ACTIVE  # the others gave theirs away
    ((name, state),) = federation.clients.states()
    assert name == client_pool.CLIENT_LIST
    assert state is not None
    assert len(state["kept"]) == 0
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert {file.stem for file in saved.glob("*.safetensors")} == {"server", "clients"}


def test_a_reference_to_an_inactive_client_does_not_see_another_clients_model() -> None:
    federation = ManyClients(methods.get("solo"), 100)
    held = federation.clients[3]
    federation.run_rounds(20)
    with pytest.raises(AttributeError):
        held.logits(torch.zeros(1, 3, 16, 16))


def test_a_checkpoint_writes_only_clients_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ManyClients(methods.get("feddc"), 60, tmp_path, budget=0)
    written: list[str] = []
    save = checkpoint.save_tensors
    monkeypatch.setattr(checkpoint, "save_tensors", lambda path, t: written.append(path.stem) or save(path, t))
    participants: set[str] = set()
    for _ in range(6):
        written.clear()
        (event,) = federation.run_rounds(1)
        participants |= set(event["clients"])
        names = {f"client-{int(name[1:]):05d}" for name in event["clients"]}
        assert names == {name for name in written if name.startswith("client-")}
        saved = checkpoint.latest(tmp_path)
        assert saved is not None
        assert len(list(saved.glob("client-*"))) == len(participants)
    resumed = ManyClients(methods.get("feddc"), 60, tmp_path)
    assert resumed.server.resume()
    for k in range(60):
        one, two = federation.clients[k].state(), resumed.clients[k].state()
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one if not n.startswith("model/"))


class PersonalHead(FedAvg):
    """FedAvg with personal classifiers: only part of the model is downloaded."""

    name: ClassVar[str] = "personal-head"

    def download(self, client: Client, received: Payload) -> None:
        own = {n: t for n, t in client.model.state_dict().items() if n.startswith("head")}
        client.model.load_state_dict({**received.under("weights"), **own})


def test_models_are_kept_where_the_download_replaces_only_a_part() -> None:
    in_memory, on_disk = ManyClients(PersonalHead, 20), ManyClients(PersonalHead, 20, budget=0)
    assert FedAvg.begins_with_global
    assert not PersonalHead.begins_with_global
    assert [e["losses"] for e in in_memory.run_rounds(8)] == [e["losses"] for e in on_disk.run_rounds(8)]
    for one, two in zip(in_memory.clients, on_disk.clients, strict=True):
        assert equal(one.model.state_dict(), two.model.state_dict())


def test_indices_count_from_the_end_and_end() -> None:
    clients = ManyClients(FedAvg, 7).clients
    assert clients[-1].index == 6
    assert [client.index for client in clients] == list(range(7))
    with pytest.raises(IndexError):
        clients[7]
