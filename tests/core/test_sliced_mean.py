"""The mean by coverage against a loop over numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedchoir.core.aggregation import Mean
from fedchoir.core.sliced_mean import Place, SlicedMean
from fedchoir.models.slices import slice_index
from fedchoir.payload import Payload

FULL = {"w": torch.Size([6, 4]), "b": torch.Size([6])}
SIZES = {0: (3, 2), 1: (6, 4), 2: (4, 3), 3: (2, 4)}


def sent(client: int) -> Payload:
    draw = torch.Generator().manual_seed(client)
    rows, columns = SIZES[client]
    return Payload(w=torch.randn(rows, columns, generator=draw), b=torch.randn(rows, generator=draw))


def places(client: int, shift: int) -> dict[str, Place]:
    return {n: (n, slice_index(FULL[n], t.shape, lambda width: shift)) for n, t in sent(client).items()}


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize("weights", [None, [5.0, 0.0, 2.0, 1.0]])
def test_every_number_is_the_mean_over_the_clients_that_have_it(shift: int, weights: list[float] | None) -> None:
    previous = {n: torch.full(shape, 7.0) for n, shape in FULL.items()}
    mean = SlicedMean(previous, lambda client: places(client, shift), weights)
    expected = {n: [np.zeros(shape), np.zeros(shape)] for n, shape in FULL.items()}
    for client in (0, 2, 3):
        mean.add(client, [sent(client)])
        weight = 1.0 if weights is None else weights[client]
        for name, t in sent(client).items():
            windows = [
                sorted((k + (shift if part < full else 0)) % full for k in range(part))
                for full, part in zip(FULL[name], t.shape, strict=True)
            ]
            for at in itertools.product(*(range(len(w)) for w in windows)):
                target = tuple(w[k] for w, k in zip(windows, at, strict=True))
                expected[name][0][target] += weight * t[at].item()
                expected[name][1][target] += weight
    (merged,) = mean.result()
    for name, (total, count) in expected.items():
        values = np.where(count > 0, total / np.maximum(count, 1e-9), 7.0)
        assert (count == 0).any()  # some numbers belong to no client
        np.testing.assert_allclose(merged[name].numpy(), values, rtol=1e-5, atol=1e-6)
        assert merged[name].dtype == torch.float32


def test_with_one_width_it_is_the_plain_mean() -> None:
    payloads = [Payload(w=torch.randn(6, 4), n=torch.tensor(3 * k)) for k in range(3)]
    previous = {"w": torch.zeros(6, 4), "n": torch.tensor(0)}
    whole = {n: (n, slice_index(t.shape, t.shape, lambda width: 2)) for n, t in previous.items()}
    sliced, plain = SlicedMean(previous, lambda client: whole, [1.0, 2.0, 4.0]), Mean([1.0, 2.0, 4.0])
    for client, payload in enumerate(payloads):
        sliced.add(client, [payload])
        plain.add(client, [payload])
    (one,), (two,) = sliced.result(), plain.result()
    assert torch.equal(one["w"], two["w"])
    assert one["n"].dtype == torch.int64
    assert one["n"] == two["n"] == round((2 * 3 + 4 * 6) / 7)


def test_tensors_of_different_clients_may_have_different_targets() -> None:
    previous = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.ones(2)}
    index = (torch.arange(2),)
    mean = SlicedMean(previous, lambda client: {"x": ("ab"[client], index)})
    mean.add(0, [Payload(x=torch.tensor([1.0, 2.0]))])
    mean.add(1, [Payload(x=torch.tensor([3.0, 4.0]))])
    (merged,) = mean.result()
    assert {name: t.tolist() for name, t in merged.items()} == {"a": [1, 2], "b": [3, 4], "c": [1, 1]}
    assert previous["a"].tolist() == [0, 0]
