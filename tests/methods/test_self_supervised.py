"""What all self-supervised methods share: objectives, views, linear evaluation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.helpers import events
from tests.methods.ssl.one_client import one_client

from fedchoir import Experiment, Result, run
from fedchoir.utils.errors import UsageError

Play = Callable[..., Result]
Small = Callable[..., Experiment]


def test_the_probe_is_fitted_only_where_it_is_asked_for(small: Small) -> None:
    experiment = small("byol", rounds=6, settings={"evaluate_every": 2, "local_epochs": 0})
    run(experiment)
    assert [event["accuracy"] is not None for event in events(experiment)] == [False, True, False, True, True, True]


@pytest.mark.parametrize("objective", ["simsiam", "simclr"])
@pytest.mark.parametrize("name", ["fedfoa", "fedema"])
def test_every_objective_federates(name: str, objective: str, play: Play) -> None:
    assert play(name, rounds=2, settings={"objective": objective, "foa": True}).rounds == 2


def test_two_views_are_two_draws_and_the_first_is_the_one_of_a_single_view() -> None:
    _, client = one_client()
    single = list(client.private_batches.batches(range(1), {}))
    double = list(client.private_batches.batches(range(1), {}, views=2))
    again = list(client.private_batches.batches(range(1), {}, views=2))
    for one, two, same in zip(single, double, again, strict=True):
        assert torch.equal(one.inputs, two.inputs)
        assert not torch.equal(two.inputs, two["view2"])
        assert torch.equal(two["view2"], same["view2"])


def test_labels_are_not_used_in_training() -> None:
    """Shuffled labels: not one weight changes, online or target."""
    states = []
    for shuffle in (False, True):
        method, client = one_client("fedfoa", pretrain_epochs=1)
        if shuffle:
            client.private.labels.copy_(client.private.labels.flip(0).roll(1))
        method.pretrain(client)
        method.local_update(client)
        states.append(client.state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_two_equal_views_are_refused() -> None:
    with pytest.raises(UsageError, match="private_augment = 'none' gives two equal views"):
        one_client(private_augment="none")
