"""CKA against its definitions, its invariances, Grad-CAM and the proxy A-distance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.models import build
from fedchoir.models.base import StagedModel
from fedchoir.reporting.analysis.measures import (
    MinibatchCKA,
    compare_layers,
    compare_models,
    grad_cam,
    proxy_a_distance,
    rank_correlation,
)
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded


def related(n: int, seed: int, p: int = 5, q: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Two representations of n images with a common component."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 3, generator=g)
    x = hidden @ torch.randn(3, p, generator=g) + 0.5 * torch.randn(n, p, generator=g)
    y = hidden @ torch.randn(3, q, generator=g) + 0.5 * torch.randn(n, q, generator=g)
    return x, y


def hsic_by_definition(x: torch.Tensor, y: torch.Tensor) -> float:
    """Unbiased HSIC as a mean over all ordered quadruples of different images."""
    k, el = (z.double() @ z.double().T for z in (x, y))
    terms = [
        float(k[i, j] * (el[i, j] + el[q, r] - 2 * el[i, q])) for i, j, q, r in itertools.permutations(range(len(x)), 4)
    ]
    return float(np.mean(terms))


def cka_by_definition(x: torch.Tensor, y: torch.Tensor) -> float:
    return hsic_by_definition(x, y) / np.sqrt(hsic_by_definition(x, x) * hsic_by_definition(y, y))


def minibatch(x: torch.Tensor, y: torch.Tensor, size: int) -> float:
    cka = MinibatchCKA()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        cka.add(a, b)
    return float(cka.matrix()[0, 1])


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    """CKA of all samples at once, as centred kernel alignment."""
    h = np.eye(len(x)) - 1 / len(x)
    k, el = (h @ (z.double() @ z.double().T).numpy() @ h for z in (x, y))
    return float((k * el).sum() / np.sqrt((k * k).sum() * (el * el).sum()))


@pytest.mark.parametrize("seed", range(4))
def test_one_minibatch_is_the_unbiased_estimate_by_its_definition(seed: int) -> None:
    x, y = related(7, seed)
    assert minibatch(x, y, 7) == pytest.approx(cka_by_definition(x, y), rel=1e-9)


def test_several_minibatches_add_up_their_estimates() -> None:
    x, y = related(18, 3)
    chunks = list(zip(x.split(6), y.split(6), strict=True))
    sums = [sum(hsic_by_definition(*pair) for pair in pairs) for pairs in (
        chunks, [(a, a) for a, _ in chunks], [(b, b) for _, b in chunks],
    )]  # fmt: skip
    assert minibatch(x, y, 6) == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]), rel=1e-9)


def test_minibatches_come_near_the_whole_set_whatever_their_size() -> None:
    x, y = related(4000, 1)
    whole = linear_cka(x, y)
    for size in (8, 50, 500):
        assert minibatch(x, y, size) == pytest.approx(whole, abs=0.02)


def test_unrelated_representations_score_nothing_even_where_the_biased_value_is_high() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 60, generator=g), torch.randn(400, 60, generator=g)
    assert abs(minibatch(x, y, 20)) < 0.05
    assert np.mean([linear_cka(a, b) for a, b in zip(x.split(20), y.split(20), strict=True)]) > 0.5


@given(st.integers(0, 10**6), st.floats(0.1, 50))
@settings(max_examples=15, deadline=None)
def test_rotation_scale_and_shift_change_nothing(seed: int, scale: float) -> None:
    x, y = related(24, seed)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))).Q
    assert minibatch(x @ rotation * scale + 3, y, 12) == pytest.approx(minibatch(x, y, 12), abs=1e-4)
    assert minibatch(x, x @ rotation * scale, 12) == pytest.approx(1.0, abs=1e-4)


def test_many_models_at_once_are_the_same_as_pairs() -> None:
    x, y = related(30, 0)
    z, _ = related(30, 9)
    cka = MinibatchCKA()
    for chunk in zip(x.split(10), y.split(10), z.split(10), strict=True):
        cka.add(*chunk)
    matrix = cka.matrix()
    assert torch.equal(matrix, matrix.T)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(3, dtype=torch.float64))
    assert float(matrix[0, 2]) == pytest.approx(minibatch(x, z, 10))
    assert float(matrix[1, 2]) == pytest.approx(minibatch(y, z, 10))


def test_too_small_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="4 or more"):
        MinibatchCKA().add(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="no batch"):
        MinibatchCKA().matrix()


def test_layers_of_a_model_and_of_another() -> None:
    torch.manual_seed(0)
    one, two = build("resnet10@4", 4, InputSpec.image(16)), build("resnet10@4", 4, InputSpec.image(16))
    batches = [torch.randn(12, 3, 16, 16) for _ in range(2)]
    same = compare_layers(one, one, batches)
    other = compare_layers(one, two, batches)
    assert list(same) == list(other) == ["0", "1", "2", "3", "4", "features"]
    assert all(value == pytest.approx(1.0) for value in same.values())
    assert all(value < 0.999 for value in other.values())
    matrix = compare_models([one, two, one], batches)
    assert float(matrix[0, 1]) == pytest.approx(other["features"], rel=1e-6)
    assert float(matrix[0, 2]) == pytest.approx(1.0)
    assert not one.trunk[0]._forward_hooks


def test_grad_cam_finds_the_quarter_that_decides() -> None:
    """Channel 0 is active in a corner and gives class 0, channel 1 in the lower half and gives class 1."""

    class Split(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            maps = torch.zeros(len(x), 2, 8, 8)
            maps[:, 0, :4, :4] = 1.0
            maps[:, 1, 4:] = 1.0
            return maps * x.mean()

    class Pick(torch.nn.Module):
        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            return maps.sum(dim=(2, 3))

    with seeded(0, "cam"):
        model = StagedModel("x", Split(), Pick(), torch.nn.Identity(), map_dim=2, feature_dim=2, num_classes=2)
    heat = grad_cam(model, torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))
    assert heat[0, :4, :4].min() == 1
    assert heat[0, 4:].max() == 0
    assert heat[1, 4:].min() == 1
    assert heat[1, :4].max() == 0


@pytest.mark.parametrize("name", ["resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25"])
def test_grad_cam_of_every_kind_of_model(name: str) -> None:
    model = build(name, 4, InputSpec.image(16))
    heat = grad_cam(model, torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 2]))
    assert heat.shape == (3, 16, 16)
    assert heat.min() >= 0
    assert heat.max() <= 1
    assert all(p.grad is None for p in model.parameters())


def test_proxy_a_distance_grows_with_the_shift() -> None:
    draw = np.random.default_rng(3)
    base = draw.normal(size=(300, 6))
    distances = [proxy_a_distance(base, draw.normal(size=(300, 6)) + shift) for shift in (0.0, 0.7, 3.0)]
    assert distances == sorted(distances)
    assert distances[0] < 0.4
    assert distances[2] > 1.9


def test_rank_correlation_needs_three_different_points() -> None:
    assert rank_correlation([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
