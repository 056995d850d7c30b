"""The tensor helpers against NumPy."""

import numpy as np
import pytest
import torch

from fedchoir.losses._common import check_choice, cosines, kl, off_diagonal, one_hot, product


def test_off_diagonal_equals_a_mask():
    square = torch.randn(7, 7)
    assert torch.equal(off_diagonal(square), square[~torch.eye(7, dtype=torch.bool)].view(7, 6))


def test_one_hot_equals_torchs_and_ignores_unknown_labels():
    labels = torch.tensor([0, 3, 1])
    assert torch.equal(one_hot(labels, 4), torch.nn.functional.one_hot(labels, 4).bool())
    assert not one_hot(torch.tensor([-1, 4]), 4).any()


def test_cosines_match_numpy():
    a, b = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    x, y = a.numpy(), b.numpy()
    expected = x @ y.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1))
    np.testing.assert_allclose(cosines(a, b).numpy(), expected, rtol=1e-12)


def test_product_keeps_float32_under_autocast():
    a = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(product(a, a), (a @ a).float())
        assert product(a, a).dtype == torch.float32
    assert torch.equal(product(a, a), a @ a)


def test_kl_matches_its_definition_and_detaches_the_target():
    target, logits = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    p, q = target.softmax(1), logits.softmax(1)
    torch.testing.assert_close(kl(target, logits), (p * (p / q).log()).sum(1).mean())
    kl(target, logits).backward()
    assert target.grad is None


def test_an_unknown_choice_names_the_choices():
    with pytest.raises(ValueError, match="form is 'mask'; choose one of: masked, renormalised"):
        check_choice("form", "mask", ("masked", "renormalised"))
