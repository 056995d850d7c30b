"""FedFoA in whole runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.helpers import equal, events

from fedchoir import Experiment, run
from fedchoir.core import checkpoint

Small = Callable[..., Experiment]
ENTRIES = 8 * 9 // 2  # of a triangular matrix with the dim of the small runs


def weights(experiment: Experiment, client: int = 0) -> dict[str, torch.Tensor]:
    state = checkpoint.load(checkpoint.latest(experiment.out / "checkpoint"), f"client-{client:05d}")
    return {name: t for name, t in state.items() if not name.startswith(("modules/correlations", "memory/"))}


def test_fedfoa_is_byol_until_the_warm_up_ends(small: Small) -> None:
    """During the warm-up, and with λ = 0, correlations are shared but not one weight differs; then they do."""
    alone, warm = small("byol", "alone", rounds=2), small("fedfoa", "warm", rounds=2, settings={"t_warm": 2})
    unweighted = small("fedfoa", "unweighted", rounds=2, settings={"foa_weight": 0.0})
    weighted = small("fedfoa", "weighted", rounds=2, settings={"foa_weight": 1.0})
    for experiment in (alone, warm, unweighted, weighted):
        run(experiment)
    assert equal(weights(alone), weights(warm))
    assert equal(weights(alone), weights(unweighted))
    assert not all(equal(weights(alone, k), weights(weighted, k)) for k in range(3))


def test_one_matrix_a_round_goes_up_and_the_others_come_down(small: Small) -> None:
    experiment = small("fedfoa", rounds=3)
    run(experiment)
    first, second, _ = events(experiment)
    assert first["bytes_up"] == second["bytes_up"] == 3 * ENTRIES * 4
    assert first["bytes_down"] == 0
    assert second["bytes_down"] == 3 * 2 * ENTRIES * 4
    assert second["messages"] == 3


def test_events_tell_the_distance_of_correlations_and_the_nearest_neighbours(small: Small) -> None:
    experiment = small("fedfoa", rounds=2)
    run(experiment)
    for event in events(experiment):
        distance = torch.tensor(event["measures"]["correlation_distance"])
        assert distance.shape == (3, 3)
        assert torch.equal(distance, distance.T)
        assert (distance.diagonal() == 0).all()
        assert (distance + torch.eye(3) > 0).all()
        assert all(0 <= losses["knn"] <= 100 for losses in event["losses"].values())


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_both_solvers_give_equal_weights(solver: str, small: Small) -> None:
    auto, other = small("fedfoa", "auto", rounds=2), small("fedfoa", solver, rounds=2, settings={"solver": solver})
    run(auto), run(other)
    for name, t in weights(auto).items():
        torch.testing.assert_close(weights(other)[name], t, rtol=1e-3, atol=1e-4, msg=name)


def test_half_precision_leaves_the_factorisations_in_full(small: Small) -> None:
    experiment = small("fedfoa", rounds=2, precision="bf16")
    run(experiment)
    distance = torch.tensor(events(experiment)[-1]["measures"]["correlation_distance"])
    assert distance.isfinite().all()
    assert (distance + torch.eye(3) > 0).all()


def test_every_round_records_what_the_term_did(small: Small) -> None:
    experiment = small("fedfoa", rounds=3, settings={"t_warm": 1, "foa_weight": 0.1})
    run(experiment)
    for event in events(experiment):
        for losses in event["losses"].values():
            assert 0 < losses["trace"] <= 8  # at unit length at most n
            assert 0 <= losses["peers_passed"] <= 2
            assert (losses["understanding_gap"] > 0) == (losses["peers_passed"] > 0)
    first, *later = events(experiment)
    assert all(losses["peers_passed"] == 0 for losses in first["losses"].values())  # the warm-up
    assert any(losses["peers_passed"] > 0 for event in later for losses in event["losses"].values())


@pytest.mark.parametrize("name", ["byol", "fedbyol", "fedema"])
def test_without_weight_correlations_are_recorded_and_training_stays_as_it_is(name: str, small: Small) -> None:
    plain = small(name, "plain", rounds=3)
    recorded = small(name, "recorded", rounds=3, settings={"foa": True, "foa_weight": 0.0})
    run(plain), run(recorded)
    assert equal(weights(plain), weights(recorded))
    for event in events(recorded):
        assert torch.tensor(event["measures"]["correlation_distance"]).shape == (3, 3)
    one, two = events(plain)[-1]["bytes_down"], events(recorded)[-1]["bytes_down"]
    assert one == two  # nothing is sent to clients that would not use it


@pytest.mark.parametrize(("target", "received"), [("peers", 2), ("random", 2), ("own", 1)])
def test_controls_replace_what_clients_align_with(target: str, received: int, small: Small) -> None:
    experiment = small("fedfoa", target, rounds=3, settings={"foa_target": target, "t_warm": 1})
    run(experiment)
    assert events(experiment)[-1]["bytes_down"] == 3 * received * ENTRIES * 4


def test_it_runs_on_small_data_without_options(small: Small) -> None:
    """The default of dim fits the batches, with a note; 24 samples a batch allow 8."""
    experiment = small("fedfoa", rounds=2, settings={"dim": "auto"})
    result = run(experiment)
    assert "dim = 8, not 256: the smallest batches of a client have 24 samples" in result.notes
    assert events(experiment)[0]["bytes_up"] == 3 * ENTRIES * 4
