"""However little memory clients' states may take, and whoever rests meanwhile: the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.helpers import Stop, StopAfter, assert_same

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.local import client_pool as roster
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments import config as experiment
from fedchoir.experiments import run as runner
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import Payload

NAMES = list(methods.registry())
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_no_memory_at_all_gives_the_same_numbers(name: str, small: Callable[..., Experiment]) -> None:
    """With a budget of 0 one client is awake at a time and all others are files."""
    plain, poor = small(name, "plain", rounds=2), small(name, "poor", rounds=2, state_budget="0")
    run(plain), run(poor)
    assert_same(plain, poor)
    assert not (poor.out / "resting").exists()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["feddc", "moon", "fccl+"])
def test_a_run_that_lies_on_disk_is_killed_and_resumed(name: str, small: Callable[..., Experiment]) -> None:
    settings = {"fraction": 0.67}
    straight = small(name, "straight", rounds=4, settings=settings)
    killed = small(name, "killed", rounds=4, settings=settings, state_budget="0")
    run(straight)
    with pytest.raises(Stop):
        run(killed, observers=[StopAfter(1)])
    rubbish = killed.out / "resting" / "client-00000.safetensors"  # type: ignore[operator]
    rubbish.parent.mkdir(exist_ok=True)
    rubbish.write_bytes(b"of a process that was killed while it wrote")
    run(killed, resume=True)
    assert_same(straight, killed)


def test_own_models_that_are_tested_outlive_a_kill(small: Callable[..., Experiment]) -> None:
    """FedAvg's clients begin a round with the global model, so theirs are let go: not if they are what is tested."""
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


# -- many clients ------------------------------------------------------------------------------------------------------


class Crowd:
    """Many clients with few images each, and the engine that plays them."""

    def __init__(self, method: type, count: int, folder: Path | None = None, *, budget: float = 2e9, **options: Any):
        draw = torch.Generator().manual_seed(1)
        images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=draw)
        pool = ImageSet(images, torch.arange(40) % 4)
        share = [torch.tensor([k % 40, (k + 1) % 40, (k + 2) % 40]) for k in range(count)]
        data = tuple(ClientData(f"c{k}", pool.subset(share[k]), "global") for k in range(count))
        scenario = Scenario("crowd", tuple("abcd"), data, {"global": pool})
        cards = tuple(ClientInfo(d.name, "logistic", 3, 40, "global") for d in data)
        values = {"local_epochs": 1, "local_batch": 2, "image_size": 16, "fraction": 5 / count, **options}
        self.method = method(method.Params(**values), FederationSpec(tuple("abcd"), cards, 50, 0, image_size=16))  # type: ignore[attr-defined]
        self.engine = LocalEngine(self.method, scenario, None, device=CPU, budget=budget)
        self.federation = Server(self.method, self.engine, ("global",), folder=folder)
        self.rounds = self.federation.rounds()

    def play(self, rounds: int) -> list[dict[str, Any]]:
        events = []
        for _ in range(rounds):
            events += next(self.rounds)
            if self.federation.folder:
                self.federation.save()
        return events


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of all clients that are built."""
    built: list[int] = []
    new = roster.new_client
    monkeypatch.setattr(roster, "new_client", lambda m, k, *a, **o: built.append(k) or new(m, k, *a, **o))
    return built


def test_clients_that_are_never_asked_are_never_built(made: list[int]) -> None:
    asked = {name for event in Crowd(FedAvg, 1000).play(3) for name in event["clients"]}
    assert {f"c{k}" for k in made} <= asked | {"c0"}  # the first one is where the global model is tested
    assert len(made) <= 16


def test_few_stay_awake_and_those_who_keep_nothing_leave_nothing(tmp_path: Path) -> None:
    crowd = Crowd(FedAvg, 2000, tmp_path, fraction=0.1)
    crowd.play(3)
    clients = crowd.engine.clients
    assert len(clients._awake) == roster.AT_HAND
    assert clients._resting.nbytes == 0
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert {file.stem for file in saved.glob("*.safetensors")} == {"server", "clients"}


def test_whoever_holds_a_client_at_rest_does_not_see_another_ones_model() -> None:
    crowd = Crowd(methods.get("solo"), 100)
    held = crowd.engine.clients[3]
    crowd.play(20)
    assert 3 not in crowd.engine.clients._awake
    with pytest.raises(AttributeError):
        held.logits(torch.zeros(1, 3, 16, 16))
    assert sum(map(len, crowd.engine.clients._idle.values())) <= roster.SPARE


def test_a_checkpoint_writes_only_those_who_were_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(methods.get("feddc"), 60, tmp_path, budget=0)
    written: list[str] = []
    save = checkpoint.save_tensors
    monkeypatch.setattr(checkpoint, "save_tensors", lambda path, t: written.append(path.stem) or save(path, t))
    asked: set[str] = set()
    for _ in range(6):
        written.clear()
        (event,) = crowd.play(1)
        asked |= set(event["clients"])
        assert {f"client-{int(name[1:]):05d}" for name in event["clients"]} == {
            name for name in written if name.startswith("client-")
        }
        saved = checkpoint.latest(tmp_path)
        assert saved is not None
        assert len(list(saved.glob("client-*"))) == len(asked)
    again = Crowd(methods.get("feddc"), 60, tmp_path)
    assert again.federation.resume()
    for k in range(60):
        one, two = crowd.engine.clients[k].state(), again.engine.clients[k].state()
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one if not n.startswith("model/"))


def test_own_models_are_scored_again_only_after_work(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(methods.get("solo"), 30)
    scored: list[int] = []
    row = LocalEngine._row
    monkeypatch.setattr(LocalEngine, "_row", lambda self, c, t: scored.append(c.index) or row(self, c, t))
    crowd.play(1)
    assert scored == list(range(30))
    scored.clear()
    (event,) = crowd.play(1)
    assert [f"c{k}" for k in scored] == event["clients"]
    plain = [crowd.method.row(client, [crowd.engine._tests[0]]) for client in crowd.engine.clients]
    assert event["accuracy"] == plain


class KeepsItsHead(FedAvg):
    """FedAvg with personal classifiers: only part of the model is downloaded."""

    name: ClassVar[str] = "keeps-its-head"

    def download(self, client: Client, received: Payload) -> None:
        weights = received.under("weights")
        own = {n: t for n, t in client.model.state_dict().items() if n.startswith("head")}
        client.model.load_state_dict({**weights, **own})


def test_a_download_of_its_own_is_not_taken_for_a_whole_one() -> None:
    rich, poor = Crowd(KeepsItsHead, 20), Crowd(KeepsItsHead, 20, budget=0)
    assert FedAvg.begins_with_global
    assert not KeepsItsHead.begins_with_global
    assert [e["losses"] for e in rich.play(8)] == [e["losses"] for e in poor.play(8)]
    for one, two in zip(rich.engine.clients, poor.engine.clients, strict=True):
        assert all(torch.equal(t, two.model.state_dict()[n]) for n, t in one.model.state_dict().items())


@pytest.mark.parametrize("text", ["2 bananas", "-1GB", "", "GB"])
def test_a_budget_that_is_no_size(text: str) -> None:
    values = {"method": "fedavg", "state_budget": text}
    with pytest.raises(runner.UsageError, match=r"state_budget = .* it should be a size such as 2GB, 500MB or 0"):
        experiment.make(values)
