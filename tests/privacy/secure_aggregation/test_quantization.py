"""Payloads as integers: a sum of packed payloads is their weighted mean, up to the quantisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.payload import Payload, PayloadError
from fedchoir.privacy.secure_aggregation.quantization import (
    PackedPayloads,
    empty_payloads,
    layout_of,
    pack,
    unpack_mean,
    weight_of,
)
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError


def payload(value: float) -> Payload:
    return Payload(
        {"logits": torch.full((2, 3), value), "count": torch.tensor(round(10 * value))}, scalars={"loss": value}
    )


def packed(value: float, weight: float = 1.0, count: int = 3) -> PackedPayloads:
    return pack([payload(value), payload(2 * value)], lambda name: weight, count)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_the_sum_of_packed_payloads_is_their_mean(values: list[float]) -> None:
    rows = [packed(value, count=len(values)) for value in values]
    total = sum((row.words for row in rows[1:]), start=rows[0].words)
    means = unpack_mean(total, rows[0].layout, lambda name: float(len(values)), len(values))
    for number, mean in enumerate(means, start=1):
        expected = number * sum(values) / len(values)
        assert mean["logits"].shape == (2, 3)
        assert mean["logits"][0, 0].item() == pytest.approx(expected, abs=1e-4)
        assert mean.scalars["loss"] == pytest.approx(expected, abs=1e-4)
        counts = [round(10 * number * v) for v in values]
        assert mean["count"].dtype == torch.int64
        assert abs(mean["count"].item() - sum(counts) / len(counts)) <= 0.51


def test_weights_multiply_each_name() -> None:
    weights = [{"": 1.0, "logits": 0.25}, {"": 1.0, "logits": 1.0}]
    rows = [pack([payload(v)], lambda n, w=w: weight_of(w, n), 2) for v, w in zip((4.0, 8.0), weights, strict=True)]
    totals = {"": 2.0, "logits": 1.25}
    (mean,) = unpack_mean(rows[0].words + rows[1].words, rows[0].layout, lambda name: weight_of(totals, name), 2)
    assert mean["logits"][0, 0].item() == pytest.approx((0.25 * 4 + 8) / 1.25, abs=1e-4)
    assert mean.scalars["loss"] == pytest.approx(6.0, abs=1e-4)


def test_the_weight_of_a_name_its_prefix_or_all() -> None:
    weights = {"weights": 0.5, "weights/bias": 0.25, "": 1.0}
    assert [weight_of(weights, n) for n in ("weights/bias", "weights/other", "loss")] == [0.25, 0.5, 1.0]
    with pytest.raises(PayloadError, match="no weight for loss"):
        weight_of({"weights": 0.5}, "loss")


def test_clipped_numbers_are_counted_and_non_finite_ones_refused() -> None:
    assert packed(1.0).clipped == 0
    assert packed(600.0).clipped == 7  # 1200 is beyond the clip: six logits and the scalar of the second payload
    with pytest.raises(SecureAggregationError, match="finite"):
        pack([Payload(x=torch.tensor([float("nan")]))], lambda name: 1.0, 3)


def test_a_layout_gives_empty_payloads_of_the_same_shape() -> None:
    layout = layout_of([payload(1.0)])
    (empty,) = empty_payloads(layout, size=8)
    assert {n: (t.shape, t.dtype) for n, t in empty.items()} == {
        "logits": ((2, 3), torch.float32),
        "count": ((), torch.int64),
    }
    assert empty.scalars == {"loss": 0.0}
    with pytest.raises(PayloadError, match="sent 9 numbers"):
        empty_payloads(layout, size=9)


@pytest.mark.parametrize(
    "layout",
    [
        "all of it",
        [{"tensors": []}],
        [{"tensors": [["x", [2], "os"]], "scalars": []}],
        [{"tensors": [["x", [-2], "float32"]], "scalars": []}],
        [{"tensors": [["x", "many", "float32"]], "scalars": []}],
        [{"tensors": [["x", [10**12], "float32"]], "scalars": []}],
    ],
)
def test_a_malformed_layout_is_refused_before_memory_is_allocated(layout: Any) -> None:
    with pytest.raises(PayloadError):
        empty_payloads(layout, size=2)


def test_a_mean_beyond_the_clip_is_refused_with_its_name() -> None:
    row = packed(1.0)
    words = row.words.copy()
    words[7] += 2**30  # the scalar of the first payload
    with pytest.raises(SecureAggregationError, match="loss: the mean has a magnitude of"):
        unpack_mean(words, row.layout, lambda name: 1.0, 3)
