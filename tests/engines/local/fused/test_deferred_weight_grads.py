"""Deferred weight gradients: computed later, a few at a time, and added up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from fedchoir.engines.local.fused.autograd import Pointwise
from fedchoir.engines.local.fused.deferred_weight_grads import (
    MAX_PENDING,
    current_stream,
    deferred_weight_gradients,
    weight_gradients,
)

CPU = torch.device("cpu")


def parameters(count: int) -> list[Tensor]:
    return [torch.zeros(1, requires_grad=True) for _ in range(count)]


def computing(value: float, calls: list[int]) -> Callable[[], tuple[Tensor]]:
    def compute() -> tuple[Tensor]:
        calls.append(current_stream())
        return (torch.tensor([value]),)

    return compute


def test_outside_of_the_block_gradients_are_returned_at_once() -> None:
    calls: list[int] = []
    (weight,) = parameters(1)
    assert weight_gradients(computing(2.0, calls), weight) == (torch.tensor([2.0]),)
    assert calls == [0]
    assert weight.grad is None


def test_inside_of_the_block_they_wait_for_its_end() -> None:
    calls: list[int] = []
    weights = parameters(3)
    with deferred_weight_gradients(CPU):
        for k, weight in enumerate(weights):
            assert weight_gradients(computing(float(k), calls), weight) == (None,)
        assert calls == []
    assert [w.grad.item() for w in weights] == [0.0, 1.0, 2.0]  # type: ignore[union-attr]
    assert calls == [1, 2, 3]  # each on a stream of its own
    assert current_stream() == 0


def test_a_full_queue_is_computed_before_the_end() -> None:
    calls: list[int] = []
    with deferred_weight_gradients(CPU):
        for weight in parameters(MAX_PENDING):
            weight_gradients(computing(1.0, calls), weight)
        assert len(calls) == MAX_PENDING


def test_gradients_of_a_layer_that_is_used_twice_add_up_on_one_stream() -> None:
    calls: list[int] = []
    (weight,) = parameters(1)
    with deferred_weight_gradients(CPU):
        weight_gradients(computing(1.0, calls), weight)
        weight_gradients(computing(2.0, calls), weight)
    assert weight.grad is not None
    assert weight.grad.item() == 3.0
    assert calls == [1, 1]


def test_weights_that_are_no_leaves_are_computed_at_once() -> None:
    calls: list[int] = []
    with deferred_weight_gradients(CPU):
        weight_gradients(computing(1.0, calls), parameters(1)[0] * 2)
        assert calls == [0]


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("deferring", [False, True])
def test_hooks_of_a_weight_are_called(kind: str, deferring: bool) -> None:
    """As without fused layers, whenever they were registered."""
    seen: list[Tensor | None] = []
    weight = nn.Parameter(torch.ones(8, 8, 1, 1))
    if kind == "register_hook":
        weight.register_hook(seen.append)
    else:
        weight.register_post_accumulate_grad_hook(lambda found: seen.append(found.grad))
    x = torch.randn(2, 8, 4, 4)
    expected = x.sum((0, 2, 3)).expand(8, 8)[:, :, None, None]
    with deferred_weight_gradients(CPU) if deferring else nullcontext():
        Pointwise.apply(x, weight).sum().backward()
    (found,) = seen
    assert found is not None
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(weight.grad, expected)
