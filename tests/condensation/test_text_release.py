"""The noised release of token frequencies: its sensitivity, and what it is without noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.condensation.test_text import VOCABULARY, WIDTH, draw_texts, rng
from torch import Tensor

from fedchoir.condensation.text import write_texts
from fedchoir.condensation.text_release import CERTAIN, exact_token_sums, noised_statistics
from fedchoir.data.text.text_set import TextSet

TEXTS = TextSet(draw_texts(60), torch.arange(60) % 2)


def test_one_text_changes_everything_together_by_at_most_1() -> None:
    whole = exact_token_sums(TEXTS, 2, VOCABULARY)
    for left_out in (0, 7, 59):
        rest = exact_token_sums(TEXTS.subset(torch.arange(60) != left_out), 2, VOCABULARY)
        change = torch.cat([(a - b).flatten() for a, b in zip(whole, rest, strict=True)]).norm()
        assert 0.999 < change <= 1
    empty = TextSet(torch.zeros(1, WIDTH, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert not exact_token_sums(empty, 2, VOCABULARY)[1].any()


def test_without_noise_it_gives_the_frequencies() -> None:
    found = noised_statistics(TEXTS, 2, VOCABULARY, 0.0, torch.zeros)
    torch.testing.assert_close(found.counts, torch.tensor([30.0, 30.0], dtype=torch.float64))
    bags = torch.zeros(60, VOCABULARY).scatter_add_(1, TEXTS.inputs, (TEXTS.inputs != 0).float())
    mean = torch.nn.functional.normalize(bags, dim=1)[::2].sum(dim=0)
    torch.testing.assert_close(found.classes[0].shares, (mean / mean.sum())[found.classes[0].tokens])
    assert 0 not in found.classes[0].tokens
    assert len(found.private_runs) == len(found.classes[0].pairs) == 0


def test_tokens_below_the_noise_are_left_out() -> None:
    generator, drawn = rng(), []

    def noise(shape: Sequence[int]) -> Tensor:
        drawn.append(torch.normal(0.0, 0.5, tuple(shape), generator=generator))
        return drawn[-1]

    found = noised_statistics(TEXTS, 2, VOCABULARY, 0.5, noise)
    noised = exact_token_sums(TEXTS, 2, VOCABULARY)[1] + drawn[1]
    made, _ = write_texts(found, found.usable(5), 3, WIDTH, rng())
    for c, each in enumerate(found.classes):
        assert each.tokens.tolist() == [v for v in range(1, VOCABULARY) if noised[c, v] > CERTAIN * 0.5]
        assert 0 < len(each.tokens) < 50
        assert each.length == WIDTH
        assert torch.isin(made[c], each.tokens).all()
