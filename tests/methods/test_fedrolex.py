"""FedRolex: the window moves, and every channel is trained in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir import Experiment, run
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
WIDTHS = ("resnet10@2", "resnet10@4", "resnet10@3")


def channels(s: FederationHarness, client: int, index: int, name: str) -> list[int]:
    """The output channels of a layer that a client has in a round."""
    _, place = s.method.places(index, client)[f"weights/{name}"]
    return place[0].flatten().tolist()


@pytest.mark.parametrize("advance", ["channel", "share"])
def test_the_window_of_a_round(advance: str, harness: Make) -> None:
    """Client 0 has half of the channels: of 4 in the stem, of 32 in the last stage."""
    s = harness("fedrolex", WIDTHS, advance=advance)
    last = "trunk.4.0.conv1.weight"
    for index in range(9):
        assert channels(s, 0, index, "trunk.0.0.weight") == sorted((index + k) % 4 for k in range(2))
        start = index if advance == "channel" else index * 32 // 4
        assert channels(s, 0, index, last) == sorted((start + k) % 32 for k in range(16))
        assert channels(s, 1, index, last) == list(range(32))  # the widest client has all
        assert channels(s, 0, index, "head.weight") == [0, 1, 2, 3]  # classes are not sliced


def test_every_channel_is_trained_equally_often(harness: Make) -> None:
    s = harness("fedrolex", WIDTHS)
    for client, width in ((0, 2), (2, 3)):
        trained = [c for index in range(4) for c in channels(s, client, index, "trunk.0.0.weight")]
        assert sorted(trained) == sorted(list(range(4)) * width)


def test_the_first_round_is_that_of_heterofl(harness: Make) -> None:
    one, two = harness("fedrolex", WIDTHS), harness("heterofl", WIDTHS)
    one.run_rounds(), two.run_rounds()
    assert equal(one.weights(), two.weights())
    assert equal(one.method.server, two.method.server)
    one.run_rounds(), two.run_rounds()
    assert not equal(one.method.server, two.method.server)


def test_all_of_the_network_changes_without_a_client_of_full_width(harness: Make) -> None:
    """With a widest client that is left out, HeteroFL never trains the last channels."""
    for method, moved in (("heterofl", False), ("fedrolex", True)):
        s = harness(method, ("resnet10@2", "resnet10@2", "resnet10@4"))
        start = {n: t.clone() for n, t in s.method.state.items()}
        for index in range(2):
            mean = s.method.sliced_mean(index)
            for k in (0, 1):
                own = s.method.client_weights(k, s.method.state, index)
                s.clients[k].model.load_state_dict({n: t + 1 for n, t in own.items()})
                mean.add(k, [s.method.upload(s.clients[k])])
            s.method.server = dict(mean.result()[0])
        weight = s.method.server["weights/trunk.0.0.weight"] != start["weights/trunk.0.0.weight"]
        assert weight[:2].all()
        assert bool(weight[2].all()) is moved
        assert not weight[3].any()  # its turn comes in the next round
        assert torch.isfinite(s.method.server["weights/head.weight"]).all()


@pytest.mark.parametrize("model", ["simple_cnn", "alexnet"])
def test_flattened_maps_need_a_window_of_equal_shares(model: str, small: Callable[..., Experiment]) -> None:
    models = (f"{model}@4", f"{model}@2")
    with pytest.raises(UsageError, match=r"one window cannot cut all its layers alike; advance = 'share' also suits"):
        run(small("fedrolex", models=models, rounds=1))
    assert run(small("fedrolex", models=models, rounds=1, settings={"advance": "share"})).rounds == 1
    with pytest.raises(UsageError, match=r"are not narrower ones$"):
        run(small("fedrolex", "other", models=("mlp", f"{model}@2"), settings={"advance": "share"}))
