"""Every method gives the same numbers on the Flower engine as on the local one, message for message through bytes.

Sites are separate here: each has its own copy of the method, sees nothing but messages, and is a file between them.
(The real SuperLink and SuperNodes are in tests/e2e.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import VARIANTS
from tests.helpers import events, numbers

from fedchoir import Experiment, Result, methods, run
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.core.settings import Settings
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.deploy.client_worker import SiteData, Worker
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import check_folder, prepare, run_on_engine

NAMES = list(methods.registry())
results = partial(numbers, without=("seconds", "messages"))


class KnownSite:
    """A site whose data is a part of a scenario."""

    precision = "fp32"
    device = torch.device("cpu")

    def __init__(self, scenario: Scenario, public: PublicSet | None, index: int, model: str) -> None:
        self.name, self.model = scenario.clients[index].name, model
        self._data = SiteData(scenario.clients[index].train, scenario.tests, public)

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData:
        return self._data


class Courier:
    """Carries letters to workers in this process, as bytes."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.sent: list[dict[str, Any]] = []
        self.trouble: Callable[[int, dict[str, Any]], str] = lambda client, header: ""

    def arrivals(self, cards: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        return cards

    def deliver(self, letters: Mapping[int, Envelope], within: float = 0.0) -> Iterator[tuple[int, Envelope | str]]:
        for k, letter in reversed(letters.items()):
            text, blobs = letter.text(), [bytes(blob) for blob in letter.blobs]
            header = json.loads(text)
            self.sent.append(header)
            if trouble := self.trouble(k, header):
                yield k, trouble
                continue
            try:
                answer = self.workers[k].act(text, blobs)
            except MessageError as error:
                yield k, str(error)
                continue
            yield k, Envelope.read(answer.text(), answer.blobs)


def on_flower(
    experiment: Experiment, work: Path, *, resume: bool = False, change: Callable[[Courier], None] = lambda c: None
) -> tuple[Result, Courier]:
    plan = make_plan(experiment)
    check_folder(plan, resume)
    method, scenario, public = prepare(plan)
    workers = [
        Worker(KnownSite(scenario, public, k, card.model), work / card.name)
        for k, card in enumerate(method.spec.clients)
    ]
    courier = Courier(workers)
    change(courier)
    told = {"digest": public.digest} if public else None
    engine = FlowerEngine(method, courier, run="0123456789abcdef", public=told)
    result = run_on_engine(
        plan, method, engine, tuple(scenario.tests), notes=[], device="cpu", resume=resume, observers=[]
    )
    return result, courier


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_both_engines_give_the_same_numbers(name: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    local, flower = small(name, "local", rounds=2), small(name, "flower", rounds=2)
    run(local)
    result, courier = on_flower(flower, tmp_path / "sites")
    assert results(local) == results(flower)
    assert result.messages == len(courier.sent)


def test_one_message_per_client_and_round_when_synchronised_by_epoch(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = {"sync": "epoch"}
    local, flower = small("fccl+", "local", settings=settings), small("fccl+", "flower", settings=settings)
    run(local)
    _, courier = on_flower(flower, tmp_path / "sites")
    assert results(local) == results(flower)
    # three rounds with three clients, and one last message that brings the end of the last round
    assert len(courier.sent) == 3 * 3 + 3


class Gone(Exception):
    """The server's process is gone."""


def dying(when: int) -> Callable[[Courier], None]:
    """A server that is gone before its message number ``when``."""

    def prepare(courier: Courier) -> None:
        def trouble(client: int, header: dict[str, Any]) -> str:
            if len(courier.sent) == when:
                raise Gone
            return ""

        courier.trouble = trouble

    return prepare


@pytest.mark.parametrize(
    ("name", "sync", "when"),
    [
        ("fccl+", "epoch", 4),
        ("fccl+", "epoch", 7),
        ("fccl+", "epoch", 10),
        ("fccl", "batch", 8),
        ("fedprox", "batch", 5),
    ],
)
def test_a_server_that_dies_goes_on_to_the_same_numbers(
    name: str, sync: str, when: int, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = {"sync": sync, "public_batch": 40}
    straight, broken = small(name, "straight", settings=settings), small(name, "broken", settings=settings)
    on_flower(straight, tmp_path / "one")

    with pytest.raises(Gone):
        on_flower(broken, tmp_path / "two", change=dying(when))
    on_flower(broken, tmp_path / "two", resume=True)
    assert results(straight) == results(broken)


@pytest.mark.parametrize("name", ["fccl", "fedavg"])
def test_a_client_that_is_away_for_rounds_comes_back(
    name: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """It was not there for the opening, so it opens when it comes; the rounds it missed whole it leaves out."""
    experiment = small(name, rounds=5, settings={"sync": "epoch"})

    def away(courier: Courier) -> None:
        courier.trouble = lambda client, header: (
            "not connected" if client == 1 and header["work"][-1]["round"] < 3 else ""
        )

    result, courier = on_flower(experiment, tmp_path / "sites", change=away)
    names = [{out["client"] for out in event["left_out"]} for event in events(experiment)]
    assert names[0] == names[1] == names[2] == {result.clients[1]["name"]}
    assert names[3] == names[4] == set()
    assert events(experiment)[4]["accuracy"][1] is not None
    rounds = [{item["round"] for item in header["work"]} for header in courier.sent if header["client"] == 1]
    assert rounds[3] == {0, 2, 3}
