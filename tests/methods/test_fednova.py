"""FedNova: the normalizer and the server update by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import states
from tests.methods.one_client import State, a_client, a_method

from fedchoir import Experiment, run
from fedchoir.data.image.image_set import ImageSet
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.methods.fednova import FedNova, normalizer
from fedchoir.payload import Payload


@given(st.integers(1, 60), st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_the_normalizer_counts_how_often_gradients_work(steps: int, momentum: float) -> None:
    """Run SGD's recursion on unit gradients, one at a time: what each adds up to in the end."""
    total = 0.0
    for start in range(steps):
        velocity = 1.0
        for _ in range(start, steps):
            total += velocity
            velocity *= momentum
    assert normalizer(steps, momentum) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 10, 16, 17])
def test_the_steps_of_an_epoch_are_counted_as_they_are_taken(size: int) -> None:
    client = a_client(a_method(FedNova))
    client.private = ImageSet(client.private.inputs[:1].repeat(size, 1, 1, 1), torch.zeros(size, dtype=torch.int64))
    taken = sum(1 for _ in client.private_batches.batches(range(1), {}))
    assert client.steps_per_epoch() == taken


def test_fednova_is_its_equation() -> None:
    method = a_method(FedNova, momentum=0.5)
    clients = [a_client(method, k) for k in (0, 1)]
    list(method.setup())
    start = {n: p.clone() for n, p in method.architecture.named_parameters()}
    aggregator = method.weighting()
    after, norms = [], []
    for client in clients:
        method.download(client, Payload(method.server))
        assert all(torch.equal(start[n], p) for n, p in client.model.named_parameters())
        method.local_update(client)
        after.append(client.snapshot())
        norms.append(normalizer(2 * client.steps_per_epoch(), 0.5))
        aggregator.add(client.index, [method.upload_update(client)])
    assert norms[0] != norms[1]
    (mean,) = aggregator.result()
    method.server_update(mean)
    share = (12 / 42, 30 / 42)
    effective = sum(p * a for p, a in zip(share, norms, strict=True))
    for name, value in method.global_weights().items():
        if name in start:
            direction = sum(p * (w[name] - start[name]) / a for p, w, a in zip(share, after, norms, strict=True))
            torch.testing.assert_close(value, start[name] + effective * direction)
        elif value.is_floating_point():
            torch.testing.assert_close(value, sum(p * w[name] for p, w in zip(share, after, strict=True)))


def test_with_equal_steps_fednova_is_fedavg(skew: Callable[..., Experiment]) -> None:
    changes = {"partition": "iid", "optimizer": "sgd", "local_lr": 0.05}
    nova, avg = skew("fednova", "nova", **changes), skew("fedavg", "avg", **changes)
    run(nova), run(avg)
    one, two = states(nova)["server"], states(avg)["server"]
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_the_server_knows_the_start_of_its_clients(
    skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it derives is what clients are made with; after pretraining it is their average instead."""
    starts: dict[int, State] = {}
    ask = LocalEngine.execute

    def spy(self: LocalEngine, clients: Any, actions: Any, index: int) -> Any:
        names = [action.function.__name__ for action in actions]
        if index == 0 and "upload_update" in names:
            for k in clients:
                starts.setdefault(k, self.clients[k].snapshot())
            (received,) = [a.received.under("weights") for a in actions if a.function.__name__ == "download"]
            starts[-1] = received
        return ask(self, clients, actions, index)

    monkeypatch.setattr(LocalEngine, "execute", spy)
    run(skew("fednova", rounds=1))
    assert all(torch.equal(starts[-1][n], state[n]) for state in starts.values() for n in state)
    starts.clear()
    run(skew("fednova", "pretrained", rounds=1, pretrain_epochs=1, partition="iid"))
    name = "head.weight" if "head.weight" in starts[-1] else next(n for n in starts[-1] if n.startswith("head"))
    torch.testing.assert_close(starts[-1][name], torch.stack([starts[k][name] for k in range(4)]).mean(0))
