"""What everyone knows about a federation: participants, dimensions, rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.settings import Settings


def make_spec(clients: int = 4, models: tuple[str, ...] = ("mlp",), **changes: int) -> FederationSpec:
    infos = tuple(ClientInfo(f"c{k}", models[k % len(models)], 40, 10, "d") for k in range(clients))
    return replace(FederationSpec(("a", "b", "c"), infos, rounds=5, seed=0), **changes)


def test_a_federation_is_homogeneous_if_all_models_are_equal() -> None:
    assert make_spec().homogeneous
    assert not make_spec(models=("mlp", "resnet10")).homogeneous


def test_dimensions_of_every_declaration() -> None:
    assert make_spec().dims == {"C": 3, "K": 4}


def test_with_fraction_one_everyone_takes_part() -> None:
    assert make_spec().participants(3, 1.0) == (0, 1, 2, 3)
    assert make_spec().participants(3, 0.9) == (0, 1, 2, 3)


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.01, 1), (0.26, 3)])
def test_participants_are_drawn_from_seed_and_round(fraction: float, count: int) -> None:
    spec = make_spec(10)
    drawn = [spec.participants(r, fraction) for r in range(200)]
    assert drawn == [spec.participants(r, fraction) for r in range(200)]
    assert all(len(p) == count and list(p) == sorted(set(p)) for p in drawn)
    assert drawn != [replace(spec, seed=1).participants(r, fraction) for r in range(200)]
    counts = Counter(k for p in drawn for k in p)
    expected, deviation = 20 * count, (20 * count * (1 - count / 10)) ** 0.5
    assert all(abs(counts[k] - expected) < 4.5 * deviation for k in range(10))


def test_clients_that_have_not_joined_do_not_take_part() -> None:
    spec = replace(make_spec(), joins=(0, 2, 0, 1))
    assert [spec.participants(r, 1.0) for r in range(3)] == [(0, 2), (0, 2, 3), (0, 1, 2, 3)]
    assert [spec.newcomers(r) for r in range(4)] == [(0, 2), (3,), (1,), ()]
    assert [make_spec().newcomers(r) for r in range(2)] == [(0, 1, 2, 3), ()]
    assert [spec.has_joined(1, r) for r in range(3)] == [False, False, True]


def test_a_fraction_is_drawn_among_those_that_have_joined() -> None:
    spec = replace(make_spec(10), joins=(0,) * 6 + (50,) * 4)
    early = [spec.participants(r, 0.5) for r in range(50)]
    assert all(len(drawn) == 3 and max(drawn) < 6 for drawn in early)
    assert len(set(early)) > 10
    usual = make_spec(10)
    assert [spec.participants(r, 0.5) for r in range(50, 99)] == [usual.participants(r, 0.5) for r in range(50, 99)]


def test_a_round_has_the_options_that_a_method_may_use() -> None:
    settings = Settings(public_batch=32, public_epochs=2, sync="epoch", public_drop_last=True, fraction=0.5)
    r = make_spec(public_size=100).round(3, settings)
    assert (r.index, r.rounds, len(r.clients)) == (3, 5, 2)
    assert (r.public_size, r.public_batch, r.public_epochs, r.drop_last, r.sync) == (100, 32, 2, True, "epoch")
