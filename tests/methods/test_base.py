"""What all public methods share: averaging of one architecture, and one exchange per batch or per pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.federation_harness import FederationHarness
from tests.helpers import equal

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


@pytest.mark.parametrize("average", ["before-local", "after-local", "never"])
@pytest.mark.parametrize("method", ["fedmd", "fccl+", "fbcl", "rcfl", "rhfl", "fedmatch", "fml"])
def test_equal_architectures_are_averaged_when_the_option_names(
    method: str, average: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and BatchNorm's buffers are equal at all clients from averaging on, until the local phase."""
    s = harness(method, ("resnet10@2",), average=average, public_size=16, local_batch=48)
    s.run_rounds()
    ends = s.weights()
    assert any("running_mean" in name for name in ends[0])
    assert equal(ends[1:], ends[:-1]) == (average == "after-local")
    starts = []
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.append(c.snapshot()), local_update(m, c))[1]
    )
    s.run_rounds()
    if average != "after-local":  # then clients start the round equal, and only the public phase makes them differ
        assert equal(starts[1:], starts[:-1]) == (average == "before-local")


def test_different_models_are_never_averaged(harness: Make) -> None:
    (event,) = harness("fedmd", average="after-local").run_rounds()
    assert event["bytes_up"] == 3 * 4 * 40 * 4


def test_unequal_class_sets_work(harness: Make, uneven: Path) -> None:
    for method in ("rcfl", "rhfl", "fedmatch", "fbcl"):
        s = harness(method, ("simple_cnn@4", "mlp"), scenario=uneven, rounds=2)
        events = s.run_rounds(2)
        assert not any(e["left_out"] for e in events), method
        assert all(t.isfinite().all() for weights in s.weights() for t in weights.values()), method


@pytest.mark.parametrize("method", ["rcfl", "rhfl", "fedmatch", "fbcl", "fedmd"])
def test_one_exchange_a_pass_carries_as_much(method: str, harness: Make) -> None:
    """With sync = epoch every client receives all aggregates at once."""
    (by_batch,), (by_epoch,) = (
        harness(method, CNN, sync=sync, average="never").run_rounds() for sync in ("batch", "epoch")
    )
    assert by_epoch["messages"] < by_batch["messages"]
    for key in ("bytes_up", "bytes_down"):
        assert by_epoch[key] == by_batch[key] > 0
