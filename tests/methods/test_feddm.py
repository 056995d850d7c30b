"""FedDM: one model at the server, trained on condensed sets alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.helpers import equal
from tests.methods.plain_models import Make

from fedchoir import Experiment, run
from fedchoir.utils.errors import UsageError

ONE = ("simple_cnn@4",)


def test_the_server_trains_and_clients_do_not(harness: Make) -> None:
    s = harness("feddm", ONE)
    before = s.weights()
    s.run_rounds()
    first = s.method.global_weights()
    s.run_rounds()
    assert equal(s.weights(), before)
    assert not equal([first], before[:1])
    assert not equal([first], [s.method.global_weights()])
    assert equal([s.method.architecture.state_dict()], before[:1])  # the initial weights stay as they are


def test_embedders_can_be_the_global_model(harness: Make) -> None:
    s = harness("feddm", ONE, embedders="own")
    s.run_rounds(1)
    trained = s.method.global_weights()
    s.run_rounds(1)
    for client in s.clients:
        assert equal([client.snapshot()], [trained])  # received for the second condensation


def test_sets_of_the_second_round_continue_those_of_the_first(harness: Make) -> None:
    s = harness("feddm", ONE, condense_steps=1, condense_lr=1e-4)
    s.run_rounds(1)
    first = s.clients[0].stored_tensor("own_set").clone()
    s.run_rounds(1)
    assert (s.clients[0].stored_tensor("own_set").float() - first.float()).abs().max() <= 1


def test_without_sets_the_initial_model_is_evaluated(harness: Make) -> None:
    s = harness("feddm", ONE, smallest_class=13)
    s.run_rounds()
    assert equal([s.method.global_weights()], [s.method.architecture.state_dict()])
    assert all(torch.isfinite(t).all() for t in s.method.server.values())


def test_what_it_cannot_do_is_refused(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="feddm: its server alone trains a model"):
        run(small("feddm", settings={"eval_model": "own"}))
    with pytest.raises(UsageError, match="feddm: its server trains on each client's synthetic samples"):
        run(small("feddm", secure=True))
