"""`FlowerEngine`: few messages, missed steps, and the state that a resumed server needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.deploy.in_process import InProcessTransport, run_on_sites, stop_before
from tests.helpers import Stop, events

from fedchoir import Experiment, methods, run
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.utils.errors import UsageError

numbers = partial(helpers.numbers, without=("seconds", "messages"))


def test_one_message_per_client_and_round_when_synchronised_by_epoch(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = {"sync": "epoch"}
    local, flower = small("fccl+", "local", settings=settings), small("fccl+", "flower", settings=settings)
    run(local)
    _, transport = run_on_sites(flower, tmp_path / "sites")
    assert numbers(local) == numbers(flower)
    # three rounds with three clients, and one last message for the end of the last round
    assert len(transport.sent) == 3 * 3 + 3


@pytest.mark.parametrize(
    ("name", "sync", "message"),
    [
        ("fccl+", "epoch", 4),
        ("fccl+", "epoch", 7),
        ("fccl+", "epoch", 10),
        ("fccl", "batch", 8),
        ("fedprox", "batch", 5),
    ],
)
def test_a_stopped_server_resumes_to_the_same_numbers(
    name: str, sync: str, message: int, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = {"sync": sync, "public_batch": 40}
    straight, stopped = small(name, "straight", settings=settings), small(name, "stopped", settings=settings)
    run_on_sites(straight, tmp_path / "one")
    with pytest.raises(Stop):
        run_on_sites(stopped, tmp_path / "two", change=stop_before(message))
    run_on_sites(stopped, tmp_path / "two", resume=True)
    assert numbers(straight) == numbers(stopped)


@pytest.mark.parametrize("message", [11, 14, 17])
def test_a_resumed_server_leaves_out_whom_it_left_out_before(
    message: int, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """A site was not connected in the first exchange of round 2, and is there when the server resumes. Sites answered
    the next exchange with the aggregate of the others, and answer it only once."""

    def disconnect(transport: InProcessTransport, connected: bool = False) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            first = header["work"][-1]["round"] == 1 and header["work"][-1]["batches"][0][2] == 0
            return "not connected" if client == 2 and first and not connected else ""

        transport.fail = fail

    def stop(transport: InProcessTransport) -> None:
        disconnect(transport)
        stop_before(message, transport.fail)(transport)

    settings = {"public_batch": 20}  # two exchanges in a round of three sites
    straight, stopped = small("fccl", "straight", settings=settings), small("fccl", "stopped", settings=settings)
    run_on_sites(straight, tmp_path / "one", change=disconnect)
    with pytest.raises(Stop):
        run_on_sites(stopped, tmp_path / "two", change=stop)
    run_on_sites(stopped, tmp_path / "two", resume=True, change=lambda transport: disconnect(transport, connected=True))
    assert numbers(straight) == numbers(stopped)
    assert [len(event["left_out"]) for event in events(stopped)] == [0, 1, 0]


@pytest.mark.parametrize("name", ["fccl", "fedavg"])
def test_a_client_that_missed_rounds_returns(name: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    """It runs the method's setup and the steps of the last round first; other rounds that it missed are dropped."""
    experiment = small(name, rounds=5, settings={"sync": "epoch"})

    def disconnect(transport: InProcessTransport) -> None:
        transport.fail = lambda client, header: (
            "not connected" if client == 1 and header["work"][-1]["round"] < 3 else ""
        )

    result, transport = run_on_sites(experiment, tmp_path / "sites", change=disconnect)
    history = events(experiment)
    names = [{out["client"] for out in event["left_out"]} for event in history]
    assert names[0] == names[1] == names[2] == {result.clients[1]["name"]}
    assert names[3] == names[4] == set()
    assert history[4]["accuracy"][1] is not None
    rounds = [{item["round"] for item in header["work"]} for header in transport.sent if header["client"] == 1]
    assert rounds[3] == {0, 2, 3}


def test_the_result_has_the_sizes_of_a_site_that_joined_late(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def join_late(transport: InProcessTransport) -> None:
        def update(clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
            return (replace(clients[0], train=48 if len(transport.sent) > 3 else 0), *clients[1:])

        def fail(client: int, header: dict[str, Any]) -> str:
            return "not connected" if client == 0 and len(transport.sent) <= 3 else ""

        transport.update_clients, transport.fail = update, fail  # type: ignore[method-assign]

    result, _ = run_on_sites(small("fedmd", rounds=2), tmp_path / "sites", change=join_late)
    assert [client["train"] for client in result.clients] == [48, 48, 48]


class SilentTransport:
    """No client is connected. Sites may join between two messages."""

    def __init__(self) -> None:
        self.joined: dict[str, ClientInfo] = {}

    def update_clients(self, clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        return tuple(self.joined.get(client.name, client) for client in clients)

    def deliver(self, envelopes: Any, within: float = 0.0) -> Any:
        yield from ((k, "not connected") for k in envelopes)


def make_engine(*names: str) -> tuple[FlowerEngine, SilentTransport]:
    clients = tuple(ClientInfo(name, "mlp", 4, 4, "own") for name in names)
    cls = methods.get("fedavg")
    method = cls(cls.Params(), FederationSpec(("a", "b"), clients, 1, 0))
    transport = SilentTransport()
    return FlowerEngine(method, transport, run="ab" * 4, public=None), transport


def test_errors_become_replies() -> None:
    engine, _ = make_engine("one", "two")
    assert [reply.error for reply in engine.exchange_keys({0: {}, 1: {}})] == ["not connected"] * 2
    assert engine.evaluate(None, 0, "accuracy") == [None, None]


def test_sites_that_join_late_are_known_to_the_method() -> None:
    engine, transport = make_engine("one", "two")
    transport.joined["two"] = ClientInfo("two", "mlp", 99, 9, "own")
    list(engine.exchange_keys({0: {}}))
    assert [client.train for client in engine.method.spec.clients] == [4, 99]


def test_a_run_cannot_be_resumed_with_other_sites() -> None:
    engine, _ = make_engine("one", "two")
    states = dict(engine.states())
    other, _ = make_engine("one", "three")
    with pytest.raises(UsageError, match="the sites were one, two and are now one, three"):
        other.load(lambda name: states[name] or {})


def test_shapes_are_those_of_the_shared_architecture() -> None:
    engine, _ = make_engine("one", "two")
    shapes = engine.method.model_shapes(0)
    assert shapes is engine.method.model_shapes(1)
    assert shapes is not None
    assert any(tensor.shape[0] == 2 for tensor in shapes.values())  # two classes
