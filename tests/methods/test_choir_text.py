"""Choir and FedDM on texts: what is sent, who trains on it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.contract.test_modalities import CLASSES, Kind, experiment, make_text
from tests.deploy.in_process import run_on_sites
from tests.federation_harness import FederationHarness

from fedchoir import Experiment, run
from fedchoir.condensation.text import LONGEST_RUN
from fedchoir.condensation.token_runs import fewest_texts, longest_common_run
from fedchoir.payload import Payload, PayloadError
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.errors import UsageError

PER_CLASS, WIDTH = 5, 12
SENT = CLASSES * PER_CLASS * WIDTH * 4 + CLASSES * 4  # int32 token ids, and which classes are owned
OWN_MODEL = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, classes, vocabulary):
        super().__init__()
        self.table = nn.EmbeddingBag(vocabulary, 8, mode="mean", padding_idx=0)
        self.head = nn.Linear(8, classes)

    def forward(self, tokens):
        return self.head(self.table(tokens))

def make(num_classes, inputs):
    return Mine(num_classes, inputs.vocabulary)
"""


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    folder = tmp_path_factory.mktemp("text") / "clients"
    folder.mkdir()
    return make_text(folder)


@pytest.fixture
def plan(kind: Kind, tmp_path: Path) -> Callable[..., Experiment]:
    def make(method: str = "choir", name: str = "run", **changes: Any) -> Experiment:
        changes["settings"] = {"local_epochs": 1, **changes.get("settings", {})}
        return experiment(kind, method, tmp_path / name, **changes)

    return make


def test_token_ids_are_sent_once_and_every_architecture_trains_on_them(plan: Callable[..., Experiment]) -> None:
    s = FederationHarness(plan(rounds=3))
    events = s.run_rounds(3)
    assert [event["bytes_up"] for event in events] == [3 * SENT, 0, 0]
    for client in s.clients:
        others = [c.stored_tensor("own_set").flatten(0, 1) for c in s.clients if c is not client]
        assert torch.equal(client.stored_tensor("received_samples"), torch.cat(others))
        assert client.stored_tensor("received_samples").dtype == torch.int32
    alone = FederationHarness(plan(rounds=3, settings={"synthetic_share": 0.0}))
    alone.run_rounds(3)
    for one, other in zip(s.weights(), alone.weights(), strict=True):
        assert not helpers.equal([one], [other])


def test_receivers_learn_the_words_of_others(plan: Callable[..., Experiment]) -> None:
    solo, choir = (run(plan(name, name, rounds=3, settings={"local_epochs": 3})) for name in ("solo", "choir"))
    assert choir.inter_avg > solo.inter_avg


def test_what_is_sent_has_no_rare_token_and_no_private_run(plan: Callable[..., Experiment]) -> None:
    s = FederationHarness(plan(settings={"smallest_class": 8}))
    s.run_rounds()
    for client in s.clients:
        private = client.private
        for c, made in enumerate(client.stored_tensor("own_set")):
            assert fewest_texts(made, private.inputs[private.labels == c]) >= 8
            assert longest_common_run(made.long(), private.inputs) <= LONGEST_RUN


def test_a_model_of_ones_own_takes_them(plan: Callable[..., Experiment], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    models = (f"{tmp_path}/mine.py:make", "textcnn@8", "bigru@8")
    result = run(plan(models=models, settings={"soft_labels": True, "pretrain_epochs": 1, "local_epochs": 3}))
    assert result.intra_avg > 100 / CLASSES + 10


def test_sets_of_another_round_have_other_texts(plan: Callable[..., Experiment]) -> None:
    s = FederationHarness(plan(settings={"refresh": 1}))
    s.run_rounds()
    first = s.clients[0].stored_tensor("own_set").clone()
    s.run_rounds()
    assert not torch.equal(first, s.clients[0].stored_tensor("own_set"))


@pytest.mark.parametrize("method", ["choir", "feddm"])
def test_sites_give_the_same_numbers(method: str, plan: Callable[..., Experiment], tmp_path: Path) -> None:
    local, flower = plan(method, "local"), plan(method, "flower")
    run(local)
    run_on_sites(flower, tmp_path / "sites")
    assert helpers.numbers(local, without=("seconds", "messages")) == helpers.numbers(
        flower, without=("seconds", "messages")
    )


def test_hostile_token_ids_are_refused_on_both_sides(plan: Callable[..., Experiment]) -> None:
    s = FederationHarness(plan())
    exchange = next(s.method.exchange_condensed())
    good = s.method.share_condensed(s.clients[0])
    assert exchange.fault(good) == ""
    wrong = good["condensed"].clone()
    wrong[0, 0, 0] = 128
    assert exchange.fault(Payload({**good, "condensed": wrong})) == (
        "condensed has a token id outside the vocabulary of 128"
    )
    with pytest.raises(PayloadError, match="a token id outside the vocabulary of 128"):
        s.method.store_sets(s.clients[0], Payload(samples=wrong[0], labels=torch.zeros(PER_CLASS, dtype=torch.int64)))


def test_one_release_with_noise(plan: Callable[..., Experiment]) -> None:
    s = FederationHarness(plan(settings={"release_noise": 0.5}))
    events = s.run_rounds(2)
    assert [client.noisy_releases for client in s.clients] == [1, 1, 1]
    assert set(events[-1]["privacy"]["epsilon"].values()) == {epsilon(0.5, 1.0, 1, 1e-5)}
    other = FederationHarness(plan(settings={"release_noise": 1.0}))
    other.run_rounds()
    assert not torch.equal(s.clients[0].stored_tensor("own_set"), other.clients[0].stored_tensor("own_set"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"embedders": "own"}, "embedders = 'own' is not for texts, whose tokens are counted; set it to random"),
        ({"formation": 2}, "formation = 2 is for images, not for text samples; set it to 1"),
        ({"release_noise": 1.0, "refresh": 1}, "release_noise = 1 is not possible with refresh = 1"),
    ],
)
def test_what_texts_cannot_do_is_refused(
    settings: dict[str, Any], why: str, plan: Callable[..., Experiment], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        run(plan(settings=settings))
    assert not (tmp_path / "run").exists()
