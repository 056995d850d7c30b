"""Aggregators: means, gathering, and a different aggregator for each name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.core.aggregation import Gather, Mean, by_name, gather, mean, rounded, weighted_mean
from fedchoir.payload import Payload


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(-1e3, 1e3)), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_the_weighted_mean_is_that_of_the_formula(clients: list[tuple[float, float]]) -> None:
    aggregator = weighted_mean([w for w, _ in clients])()
    for k, (_, value) in enumerate(clients):
        aggregator.add(k, [Payload(x=torch.tensor([value], dtype=torch.float64), scalars={"s": value})])
    (aggregated,) = aggregator.result()
    expected = sum(w * v for w, v in clients) / sum(w for w, _ in clients)
    assert aggregated["x"].item() == pytest.approx(expected, abs=1e-9)
    assert aggregated.scalars["s"] == pytest.approx(expected, abs=1e-9)


def test_weights_belong_to_clients_and_not_to_the_order_of_replies() -> None:
    aggregator = weighted_mean([1.0, 0.0, 3.0])()
    for k in (2, 0):  # client 1 did not reply
        aggregator.add(k, [Payload(x=torch.tensor([float(k)]))])
    assert aggregator.result()[0]["x"].item() == 1.5


def test_counters_are_averaged_as_integers() -> None:
    aggregator = Mean([1.0, 2.0])
    for client, count in ((0, 10), (1, 13)):
        aggregator.add(client, [Payload(n=torch.tensor(count))])
    assert aggregator.result()[0]["n"].item() == 12
    assert aggregator.result()[0]["n"].dtype == torch.int64


def test_an_aggregate_has_the_dtype_of_its_summands() -> None:
    assert rounded(torch.tensor(2.6), torch.int64).item() == 3
    assert rounded(torch.tensor(2.6, dtype=torch.float64), torch.float32).dtype == torch.float32


def test_the_payloads_are_not_changed() -> None:
    first = Payload(x=torch.ones(3))
    aggregator = mean()
    for k, payload in enumerate([first, Payload(x=torch.full((3,), 3.0))]):
        aggregator.add(k, [payload])
    assert aggregator.result()[0]["x"].tolist() == [2.0] * 3
    assert first["x"].tolist() == [1.0] * 3


def test_gather_keeps_every_payload_of_every_batch() -> None:
    aggregator = gather()
    for k in range(2):
        aggregator.add(k, [Payload(x=torch.tensor([k])), Payload(x=torch.tensor([10 + k]))])
    assert [{k: p["x"].item() for k, p in batch.items()} for batch in aggregator.result()] == [
        {0: 0, 1: 1},
        {0: 10, 1: 11},
    ]
    assert Gather().result() == []


def test_each_name_has_its_own_aggregator() -> None:
    aggregator = by_name(weights=weighted_mean([3.0, 1.0]), prototypes=mean, loss=mean)()
    for k in (0, 1):
        value = torch.tensor([4.0 * k])
        aggregator.add(k, [Payload({"weights/bias": value, "prototypes": value}, scalars={"loss": 4.0 * k})])
    (aggregated,) = aggregator.result()
    assert {name: t.item() for name, t in aggregated.items()} == {"weights/bias": 1.0, "prototypes": 2.0}
    assert aggregated.scalars == {"loss": 2.0}


def test_a_mean_of_no_client_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        mean().result()
    alone = weighted_mean([0.0])()
    alone.add(0, [Payload(x=torch.ones(1))])
    with pytest.raises(ValueError, match="weight above 0"):
        alone.result()
