"""Choir: who receives which condensed samples, and what they do to training."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make, after

from fedchoir import Experiment, run
from fedchoir.condensation.sample_space import decode, unpack
from fedchoir.core.actions import Exchange
from fedchoir.core.client import Client
from fedchoir.methods.choir import Choir
from fedchoir.payload import Payload, PayloadError
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.errors import UsageError

SENT = 4 * 2 * 3 * 16 * 16 + 4 * 4  # uint8 images of four classes, and which classes are owned


def test_sets_are_sent_once_and_forwarded_to_the_others(harness: Make) -> None:
    first, second = (s := harness("choir", PLAIN)).run_rounds(2)
    assert (first["bytes_up"], second["bytes_up"]) == (3 * SENT, 0)
    assert (first["bytes_down"], second["bytes_down"]) == (3 * 2 * (4 * 2 * (3 * 16 * 16 + 8)), 0)
    for client in s.clients:
        others = [c.stored_tensor("own_set").flatten(0, 1) for c in s.clients if c is not client]
        assert torch.equal(client.stored_tensor("received_samples"), torch.cat(others))
        assert client.stored_tensor("received_labels").tolist() == 2 * [0, 0, 1, 1, 2, 2, 3, 3]


def test_sets_are_renewed(harness: Make) -> None:
    s = harness("choir", PLAIN, refresh=2)
    sent, sets = [], []
    for _ in range(4):
        sent.append(s.run_rounds()[0]["bytes_up"])
        sets.append(s.clients[0].stored_tensor("own_set").clone())
    assert sent == [3 * SENT, 0, 3 * SENT, 0]
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[1], sets[2])


def test_a_client_that_was_absent_gets_all_known_sets(harness: Make) -> None:
    s = harness("choir", PLAIN, rounds=6, fraction=0.67)  # two of three
    s.run_rounds(6)
    known = s.method.server
    assert {name.partition("/")[0] for name in known} == {"set0", "set1", "set2"}
    for client in s.clients:
        assert len(client.stored_tensor("received_labels")) == 2 * 8


def test_a_client_that_is_asked_again_sends_the_same_set(harness: Make) -> None:
    s = harness("choir", PLAIN, rounds=4, fraction=0.67, soft_labels=True, pretrain_epochs=1)  # two of three
    sent: dict[str, torch.Tensor] = {}
    for _ in range(4):
        s.run_rounds()
        for name, t in s.method.server.items():
            assert torch.equal(sent.setdefault(name, t.clone()), t)
    assert len(sent) == 9


def test_a_set_that_did_not_arrive_is_asked_for_again(harness: Make) -> None:
    s = harness("choir", PLAIN, rounds=3)
    share = type(s.method).share_condensed

    @wraps(share)
    def fail_at_first(method: Choir, client: Client) -> Payload:
        sent = share(method, client)
        return Payload({**sent, "owned": sent["owned"] + 0.5}) if client.index == client.round == 0 else sent

    s.method.share_condensed = MethodType(fail_at_first, s.method)
    s.run_rounds()
    assert s.method.closing_notes() == ["no synthetic samples of green: no set of theirs arrived"]
    first, second = s.run_rounds(2)
    assert (first["bytes_up"], second["bytes_up"]) == (3 * SENT, 0)
    assert s.method.closing_notes() == []
    assert len(s.clients[1].stored_tensor("received_labels")) == 2 * 8


def test_without_a_share_it_is_augmented_training_alone(harness: Make) -> None:
    alone = after(harness, "choir", synthetic_share=0.0, recolor="none")
    assert equal(alone, after(harness, "solo", private_augment="affine"))
    assert not equal(alone, after(harness, "choir", recolor="none"))


def test_a_batch_has_its_share_of_synthetic_samples(harness: Make) -> None:
    s = harness("choir", PLAIN, synthetic_share=0.75, local_batch=16)
    s.run_rounds()
    companions = s.method.companions(s.clients[0])
    assert companions.count == 48
    batches = list(s.clients[0].private_batches.batches(range(1), {}, companions=companions))
    assert [len(batch) for batch in batches] == [64, 64, 64]
    assert not torch.equal(batches[0].inputs[16:], batches[1].inputs[16:])


def test_the_share_falls_linearly(harness: Make) -> None:
    s = harness("choir", PLAIN, rounds=3, synthetic_share=0.75, final_share=0.25, local_batch=12)
    shares = []
    for _ in range(3):
        s.run_rounds()
        count = s.method.companions(s.clients[0]).count
        shares.append(count / (12 + count))
    assert shares == [0.75, 0.5, 0.25]


def test_a_small_class_repeats_fewer_synthetic_samples(harness: Make) -> None:
    def first_two(**settings: Any) -> tuple[torch.Tensor, ...]:
        s = harness("choir", PLAIN, **settings)  # every class has twelve private samples
        s.run_rounds()
        return s.clients[0].stored_tensor("own_set").unbind(1)

    one, two = first_two()
    assert not torch.equal(one, two)
    one, two = first_two(private_per_synthetic=12)
    assert torch.equal(one, two)
    one, two = first_two(private_per_synthetic=0)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("side", [1, 2, 4])
def test_different_images_are_at_most_half_of_the_private_ones(side: int, harness: Make) -> None:
    """Also where a stored image holds several: a class with too few private samples for one is not condensed."""
    s = harness("choir", PLAIN, formation=side, per_class=10)
    s.run_rounds()
    for client in s.clients:
        owned = client.stored_tensor("own_classes")
        sets = client.stored_tensor("own_set")[owned > 0]
        for count, made in zip(client.class_counts()[owned > 0], sets, strict=True):
            assert 0 < len(unpack(decode(made, side)).unique(dim=0)) <= count / 2
        assert bool(owned.all()) == (side < 4)  # 12 private samples of a class; one image has 1, 4 or 16


def test_the_shared_model_leaves_the_own_one_as_it_is(harness: Make) -> None:
    assert equal(after(harness, "choir", shared_model="simple_cnn@4"), after(harness, "choir"))


def test_a_class_with_few_samples_is_not_sent(harness: Make) -> None:
    s = harness("choir", PLAIN, smallest_class=13)  # every class has twelve
    (event,) = s.run_rounds()
    assert event["left_out"] == []
    assert all(not len(client.stored_tensor("received_labels")) for client in s.clients)
    start = s.clients[0].stored_tensor("own_set")
    assert torch.equal(start, s.clients[1].stored_tensor("own_set"))  # noise of the seed, nothing else


def test_clients_that_send_nothing_are_named_in_the_result(small: Callable[..., Experiment]) -> None:
    def notes(name: str, **settings: Any) -> list[str]:
        found = run(small("choir", name, rounds=1, settings={"condense_steps": 1, **settings})).notes
        return [note for note in found if "synthetic" in note]

    assert notes("all", smallest_class=13) == [  # every class has twelve
        "no synthetic samples of green, red, white: none of their classes has 13 private samples (smallest_class, "
        "private_per_synthetic, formation)"
    ]
    assert notes("none") == []


def test_missing_classes(harness: Make, uneven: Path) -> None:
    s = harness("choir", PLAIN, scenario=uneven)
    s.run_rounds()
    assert set(s.clients[0].stored_tensor("received_labels").tolist()) == {0, 1, 2}
    owned = [s.method.server[f"set{k}/owned"].tolist() for k in range(3)]
    assert owned == [[0, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]  # in the order of their names


def test_smaller_images_in_one_and_soft_labels(harness: Make) -> None:
    s = harness("choir", PLAIN, formation=2, soft_labels=True, pretrain_epochs=1)
    s.run_rounds()
    companions = s.method.companions(s.clients[0])
    assert len(companions.samples) == len(companions.targets["soft"]) == 4 * 2 * 8
    torch.testing.assert_close(companions.targets["soft"].sum(dim=1), torch.ones(64))
    assert companions.samples.labels[:8].tolist() == [0] * 8


@pytest.mark.parametrize("settings", [{"soft_labels": True}, {"embedders": "own"}])
def test_an_untrained_model_is_no_teacher(settings: dict[str, Any], small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="needs a trained model: set pretrain_epochs or refresh to 1 or more"):
        run(small("choir", settings=settings))


def test_until_models_are_trained_embedders_are_random_and_labels_certain(harness: Make) -> None:
    def sets(**settings: Any) -> list[torch.Tensor]:
        s = harness("choir", PLAIN, refresh=1, recolor="none", **settings)
        found = []
        for _ in range(2):
            s.run_rounds()
            found.append(s.clients[0].stored_tensor("own_set").clone())
        return found

    random, own = sets(), sets(embedders="own")
    assert torch.equal(random[0], own[0])
    assert not torch.equal(random[1], own[1])

    s = harness("choir", PLAIN, refresh=1, soft_labels=True)
    s.run_rounds()
    companions = s.method.companions(s.clients[0])
    assert torch.equal(companions.targets["soft"], torch.eye(4)[companions.samples.labels])
    s.run_rounds()
    soft = s.method.companions(s.clients[0]).targets["soft"]
    assert (soft < 1).all()
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(len(soft)))


def test_secure_sums_are_refused_with_the_reason(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="choir: its server forwards each client's synthetic samples"):
        run(small("choir", secure=True))


def test_a_client_with_an_impossible_set_is_left_out(harness: Make) -> None:
    s = harness("choir", PLAIN)
    script = s.method.exchange_condensed()
    exchange = next(script)
    assert isinstance(exchange, Exchange)
    good = s.method.share_condensed(s.clients[0])
    assert exchange.fault is not None
    assert exchange.fault(good) == ""
    assert exchange.fault(Payload({**good, "owned": good["owned"] + 0.5})) != ""


def test_a_client_refuses_labels_that_do_not_exist(harness: Make) -> None:
    s = harness("choir", PLAIN)
    wrong = Payload(samples=torch.zeros(1, 3, 16, 16, dtype=torch.uint8), labels=torch.tensor([4]))
    with pytest.raises(PayloadError, match="not one of 4 classes"):
        s.method.store_sets(s.clients[0], wrong)


# -- differential privacy ----------------------------------------------------------------------------------------------


def test_with_noise_the_private_samples_are_used_once(harness: Make) -> None:
    s = harness("choir", PLAIN, release_noise=0.5, rounds=4, fraction=0.67)
    releases = []
    for _ in range(4):
        s.run_rounds()
        releases.append([client.noisy_releases for client in s.clients])
    assert releases[-1] == [1, 1, 1]  # clients that were asked twice sent the same set


def test_noise_changes_the_set_and_epsilon_is_that_of_one_release(harness: Make) -> None:
    sets = []
    for noise in (0.5, 1.0):
        s = harness("choir", PLAIN, release_noise=noise)
        events = s.run_rounds(2)
        sets.append(s.clients[0].stored_tensor("own_set").clone())
        for event in events:
            assert event["privacy"]["epsilon"] == dict.fromkeys(("green", "red", "white"), epsilon(noise, 1.0, 1, 1e-5))
    assert not torch.equal(*sets)


def test_a_release_of_tables_needs_agreed_scaling(tmp_path: Path) -> None:
    def heart(scaling: str) -> Experiment:
        settings = {"release_noise": 1.0, "scaling": scaling, "condense_steps": 1}
        return Experiment(method="choir", scenario="heart", rounds=1, settings=settings, out=tmp_path / "out")

    with pytest.raises(UsageError, match="for table samples that are scaled by their own statistics"):
        run(heart("own"))
    assert not (tmp_path / "out").exists()
    assert run(heart("agreed")).inter_avg > 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"refresh": 1}, "refresh = 1: there is one release"),
        ({"soft_labels": True, "pretrain_epochs": 1}, "outputs of a model that was trained without noise"),
        ({"embedders": "both", "pretrain_epochs": 1}, "outputs of a model that was trained without noise"),
        ({"shared_model": "simple_cnn@4"}, "shared_model: its weights are trained without noise"),
        ({"models": ("mlp",)}, "averaged weights, which are trained without noise: set average to never"),
    ],
)
def test_nothing_else_may_depend_on_private_samples(
    settings: dict[str, Any], why: str, small: Callable[..., Experiment]
) -> None:
    changes = {"models": settings.pop("models")} if "models" in settings else {}
    with pytest.raises(UsageError, match=f"release_noise = 1 is not possible with {why}"):
        run(small("choir", settings={"release_noise": 1.0, **settings}, **changes))
