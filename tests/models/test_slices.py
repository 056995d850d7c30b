"""Windows of channels against loops, and which narrow networks are parts of wide ones."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.models import Model, build
from fedchoir.models.slices import common_divisor, is_narrower, is_part, slice_index, window
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded


@given(st.integers(1, 20), st.data(), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_a_window_is_a_run_of_channels_around_the_end(full: int, data: st.DataObject, shift: int) -> None:
    part = data.draw(st.integers(1, full))
    expected, channel = [], shift
    for _ in range(part):
        expected.append(channel % full)
        channel += 1
    assert window(full, part, shift).tolist() == sorted(expected)


def test_a_slice_has_the_window_of_every_dimension() -> None:
    full = torch.arange(4 * 6 * 3).view(4, 6, 3)
    index = slice_index(full.shape, torch.Size([2, 4, 3]), lambda width: 3)
    found = full[index]
    rows, columns = [0, 3], [0, 3, 4, 5]
    for (a, row), (b, column), c in itertools.product(enumerate(rows), enumerate(columns), range(3)):
        assert found[a, b, c] == full[row, column, c]
    assert found.shape == (2, 4, 3)
    counter = torch.tensor(5)
    assert counter[slice_index(counter.shape, counter.shape, lambda width: 1)] == 5


def models(wide: str, narrow: str, inputs: InputSpec) -> tuple[Model, Model]:
    with seeded(0, "slices"):
        return build(wide, 3, inputs), build(narrow, 3, inputs)


IMAGE, SERIES, TEXT = InputSpec.image(16), InputSpec("series", (2, 24)), InputSpec("text", (12,), 50)
CHANNELS = ["resnet10", "resnet10_gn", "mlp"]
FLATTENED = ["simple_cnn", "vgg9", "alexnet"]


def at(shift: int, width: int) -> int:
    return shift


def share(divisor: int, width: int) -> int:
    return 3 * width // divisor


@pytest.mark.parametrize("name", CHANNELS + FLATTENED)
def test_the_first_channels_are_a_network(name: str) -> None:
    assert is_part(*models(f"{name}@8", f"{name}@4", IMAGE), partial(at, 0), IMAGE)


@pytest.mark.parametrize("name", CHANNELS + FLATTENED)
def test_other_channels_are_a_network_unless_a_map_is_flattened(name: str) -> None:
    wide, narrow = models(f"{name}@8", f"{name}@4", IMAGE)
    assert is_part(wide, narrow, partial(at, 3), IMAGE) == (name in CHANNELS)
    divisor = common_divisor(wide.state_dict(), narrow.state_dict())
    assert divisor == 8
    assert is_part(wide, narrow, partial(share, divisor), IMAGE)


@pytest.mark.parametrize(
    ("name", "inputs"), [("gru", SERIES), ("transformer", SERIES), ("textcnn", TEXT), ("bigru", TEXT)]
)
def test_networks_with_stacked_blocks_are_no_parts(name: str, inputs: InputSpec) -> None:
    wide, narrow = models(f"{name}@8", f"{name}@4", inputs)
    assert is_narrower(wide.state_dict(), narrow.state_dict())
    assert not is_part(wide, narrow, partial(at, 0), inputs)


def test_another_family_or_a_wider_network_is_not_narrower() -> None:
    wide, narrow = (model.state_dict() for model in models("resnet10@8", "resnet10@4", IMAGE))
    other, deeper = (build(name, 3, IMAGE).state_dict() for name in ("mlp", "resnet12@4"))
    assert is_narrower(wide, narrow)
    assert is_narrower(wide, wide)
    assert not any(is_narrower(wide, part) for part in (other, deeper))
    assert not is_narrower(narrow, wide)
    assert common_divisor(wide, wide) == 0


def test_the_check_changes_neither_network() -> None:
    wide, narrow = models("resnet10@4", "resnet10@2", IMAGE)
    before = [{n: t.clone() for n, t in model.state_dict().items()} for model in (wide, narrow)]
    is_part(wide, narrow, partial(at, 1), IMAGE)
    for model, state in zip((wide, narrow), before, strict=True):
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
        assert model.training
    assert narrow.features(torch.zeros(2, 3, 16, 16)).dtype == torch.float32
