"""Derived randomness: depends on the seed and the labels, on nothing else, and never changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedchoir.utils.rng import derive, generator, reseed, seeded

LABELS = st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=4)), max_size=4)


@pytest.mark.parametrize(
    ("labels", "number"),
    [
        ((), 7210762507766007076),
        (("public order", 3, 1), 3990691461119200025),
        (("client", 2, 0, "practise", "private order", 1), 1112413020736448508),
    ],
)
def test_derived_numbers_are_frozen(labels: tuple[int | str, ...], number: int) -> None:
    """All results depend on them: another hash would change every kept number."""
    assert derive(0, *labels) == number


@given(st.integers(0, 2**40), LABELS, LABELS)
def test_different_labels_give_different_numbers(seed: int, one: list[int | str], two: list[int | str]) -> None:
    assert (derive(seed, *one) == derive(seed, *two)) == (one == two)
    assert 0 <= derive(seed, *one) < 2**63


def test_a_seed_is_not_a_label() -> None:
    assert derive(1, 2) != derive(2, 1)
    assert derive(0, 1) != derive(0, "1")


def test_generators_of_one_purpose_draw_the_same_numbers() -> None:
    one, two, other = generator(0, "a", 1), generator(0, "a", 1), generator(0, "a", 2)
    torch.rand(7)  # global draws do not matter
    assert torch.equal(torch.rand(5, generator=one), torch.rand(5, generator=two))
    assert not torch.equal(torch.rand(5, generator=one), torch.rand(5, generator=other))


def test_reseeding_equals_manual_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    reseed(5)
    assert torch.equal(torch.rand(3), expected)


def test_a_seeded_block_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(0, "model"):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(0, "model"):
        assert torch.equal(torch.rand(3), first)


def test_a_seeded_block_restores_the_generator_after_an_error() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded(0):
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), state)
