"""Rounding and selection against independent references in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedchoir.compression import rounding, selection, symmetric
from fedchoir.compression.chain import parse
from fedchoir.compression.coding import Coding
from fedchoir.losses import instance_similarity


def coding(text: str, shape: tuple[int, ...], **properties: bool) -> Coding:
    chain = parse(text).up
    assert chain is not None
    return Coding(chain, shape, torch.float32, **properties)


def through(code: Coding, tensor: Tensor) -> Tensor:
    raw = code.encode(tensor)
    assert len(raw) == code.size
    return code.decode(raw)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 700), st.floats(-30, 30), st.integers(0, 99))
@settings(max_examples=40)
def test_fp16_has_eleven_bits_at_any_magnitude(count: int, power: float, seed: int) -> None:
    """Plain float16 has no number above 65504 and none between 0 and 6e-8."""
    values = draw(count, seed=seed, scale=10.0**power).clamp(-1e38, 1e38)
    found = rounding.decode(rounding.encode(values, "fp16"), count, "fp16")
    largest = float(values.abs().max())
    assert bool(found.isfinite().all())
    np.testing.assert_allclose(found.numpy(), values.numpy(), rtol=2.0**-11, atol=largest * 2.0**-24)


def test_fp16_of_numbers_beyond_its_range() -> None:
    values = torch.tensor([70_000.0, -1e9, 3e38, 0.0])
    found = rounding.decode(rounding.encode(values, "fp16"), 4, "fp16")
    assert bool(found.isfinite().all())
    assert found[2].item() == pytest.approx(3e38, rel=1e-3)


@given(st.integers(1, 700), st.floats(-20, 20), st.floats(-5, 5), st.integers(0, 99))
@settings(max_examples=40)
def test_int8_is_within_half_a_step_of_each_block(count: int, power: float, shift: float, seed: int) -> None:
    values = (draw(count, seed=seed) + shift) * 10.0**power
    found = rounding.decode(rounding.encode(values, "int8"), count, "int8").double().numpy()
    exact = values.double().numpy()
    for start in range(0, count, 256):
        block = exact[start : start + 256]
        half_step = (block.max() - block.min()) / 255 / 2
        error = np.abs(found[start : start + 256] - block).max()
        assert error <= half_step * (1 + 1e-3) + np.abs(block).max() * 1e-6


@pytest.mark.parametrize("kind", ["fp16", "int8", None])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(kind: rounding.Rounding | None, bad: float) -> None:
    """The server leaves such a client out: compression must not hide it."""
    values = draw(600)
    values[300] = bad
    assert not bool(rounding.decode(rounding.encode(values, kind), 600, kind).isfinite().all())


@pytest.mark.parametrize("shape", [(17, 17), (17, 16)])
def test_one_half_of_a_symmetric_matrix_is_all_of_it(shape: tuple[int, int]) -> None:
    features = draw(17, 5)
    matrix = features @ features.T if shape[0] == shape[1] else instance_similarity(features)
    matrix = symmetric.whole(symmetric.half(matrix), shape)
    assert symmetric.is_symmetric(matrix)
    code = coding("zstd", shape, half=True)
    assert torch.equal(through(code, matrix), matrix)
    assert code.size == 4 * (17 * 18 // 2 if shape[0] == shape[1] else 17 * 16 // 2)
    matrix[3, 5] += 1
    assert not symmetric.is_symmetric(matrix)


def test_top_k_keeps_the_largest_of_every_row_and_the_mean_of_the_rest() -> None:
    matrix = draw(12, 40) + 0.3
    found = through(coding("topk:0.1", (12, 40), sparse=True), matrix).numpy()
    rest = []
    for row, exact in zip(found, matrix.numpy(), strict=True):
        kept = np.argsort(-np.abs(exact))[:4]
        assert (row[kept] == exact[kept]).all()
        rest += list(np.delete(exact, kept))
        assert len(set(np.delete(row, kept).tolist())) == 1
    fill = float(np.delete(found[0], np.argsort(-np.abs(matrix[0].numpy()))[:4])[0])
    assert fill == pytest.approx(np.mean(rest), rel=1e-4)


def test_top_k_of_a_half_keeps_the_nearest_of_every_sample() -> None:
    """Similarities of one sample may all be small: it keeps its own largest ones nevertheless."""
    features = draw(40, 6, seed=3)
    features[0] = -features[1:].mean(dim=0)
    similarity = symmetric.whole(symmetric.half(instance_similarity(features)), (40, 39))
    code = coding("topk:0.1", (40, 39), half=True, sparse=True)
    found = through(code, similarity)
    assert symmetric.is_symmetric(found)
    for row, exact in zip(found, similarity, strict=True):
        assert row[exact.abs().argmax()] == exact[exact.abs().argmax()]
    assert int((symmetric.half(found) == symmetric.half(similarity)).sum()) == 78  # a tenth of 780


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_mask_is_bits_or_indices_whichever_is_less(share: float) -> None:
    mask = torch.rand(5000, generator=torch.Generator().manual_seed(1)) < share
    kept = int(mask.sum())
    raw = selection.mask_bytes(mask)
    assert len(raw) == selection.mask_size(5000, kept) == min(625, 2 * kept)
    assert torch.equal(selection.read_mask(raw, 5000, kept), mask)


def test_low_rank_is_the_best_approximation_of_its_rank() -> None:
    """Eckart-Young: its squared error is the sum of the squared singular values that were left out."""
    matrix = draw(40, 64)
    found = through(coding("lowrank:5", (40, 64), sparse=True), matrix)
    sigma = np.linalg.svd(matrix.double().numpy(), compute_uv=False)
    assert float((found - matrix).double().square().sum()) == pytest.approx(np.square(sigma[5:]).sum(), rel=1e-4)


def test_low_rank_of_a_symmetric_matrix_with_negative_eigenvalues() -> None:
    a, b = draw(40, 3), draw(40, 2, seed=1)
    matrix = symmetric.whole(symmetric.half(a @ a.T - b @ b.T), (40, 40))
    code = coding("lowrank:5", (40, 40), half=True, sparse=True)
    assert code.selects == "lowrank"
    torch.testing.assert_close(through(code, matrix), matrix, rtol=1e-4, atol=1e-4)
    assert code.size == 4 * 40 * 5 + 5


def test_low_rank_of_a_matrix_that_is_not_finite_is_not_finite() -> None:
    matrix = torch.full((40, 40), float("nan"))
    assert not bool(through(coding("lowrank:4+int8", (40, 40), half=True, sparse=True), matrix).isfinite().any())


@pytest.mark.parametrize(
    ("shape", "sparse", "stage"),
    [
        ((64, 63), True, "topk"), ((64, 10), True, ""),  # rows of ten classes are not thinned
        ((64, 63), False, ""), ((4000,), True, ""), ((4, 40), True, ""),
    ],
)  # fmt: skip
def test_what_top_k_leaves_alone(shape: tuple[int, ...], sparse: bool, stage: str) -> None:
    assert coding("topk:0.1", shape, sparse=sparse).selects == stage


def test_low_rank_is_used_where_it_halves_the_bytes() -> None:
    assert coding("lowrank:8", (64, 63), half=True, sparse=True).selects == "lowrank"
    assert coding("lowrank:16", (64, 63), half=True, sparse=True).selects == ""
