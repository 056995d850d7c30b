"""Texts are condensed by counting: what is matched, and what never leaves."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from fedchoir.condensation.text import (
    LONGEST_RUN,
    Frequencies,
    find_text_fault,
    frequencies,
    private_statistics,
    write,
    write_texts,
)
from fedchoir.condensation.token_runs import fewest_texts, longest_common_run, runs
from fedchoir.data.text.text_set import TextSet

VOCABULARY, WIDTH = 200, 30
USED = 190  # ids from here on are in no text


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_texts(count: int, seed: int = 0, shift: int = 0) -> Tensor:
    """Texts of 10 to 29 tokens with frequencies as of words; every second token depends on the one before."""
    weights = 1 / torch.arange(1, USED).float()
    tokens = 1 + torch.multinomial(weights.roll(shift), count * WIDTH, replacement=True, generator=rng(seed))
    tokens = tokens.view(count, WIDTH)
    tokens[:, 1::2] = 1 + (tokens[:, ::2] * 7) % (USED - 1)
    lengths = torch.randint(10, WIDTH, (count, 1), generator=rng(seed + 1))
    return tokens * (torch.arange(WIDTH) < lengths)


def written(texts: Tensor, count: int = 10, fewest: int = 5, seed: int = 0) -> Tensor:
    return write(frequencies(texts, VOCABULARY, fewest), count, texts.shape[1], rng(seed), runs(texts, LONGEST_RUN + 1))


def embedded_means(texts: Tensor, span: int, seed: int) -> Tensor:
    """The mean over texts of the mean over positions of ReLU filters over ``span`` random embeddings."""
    table = torch.randn(VOCABULARY, 16, generator=rng(seed))
    table[0] = 0
    filters = torch.randn(64, 16, span, generator=rng(seed + 1))
    present = (texts.unfold(1, span, 1) != 0).all(dim=2)
    found = torch.conv1d(table[texts].transpose(1, 2), filters).relu() * present[:, None]
    return (found.sum(dim=2) / present.sum(dim=1, keepdim=True)).mean(dim=0)


def test_frequencies_are_those_of_a_plain_count() -> None:
    texts = draw_texts(80)
    found = frequencies(texts, VOCABULARY, fewest=5)
    rows = [[t for t in row if t] for row in texts.tolist()]
    holders = Counter(t for row in rows for t in set(row))
    kept = sorted(t for t in holders if holders[t] >= 5)
    mean = {t: sum(row.count(t) / len(row) for row in rows) for t in kept}
    assert found.tokens.tolist() == kept
    torch.testing.assert_close(found.shares, torch.tensor([mean[t] / sum(mean.values()) for t in kept]))
    pairs = Counter(pair for row in rows for pair in zip([0, *row], row, strict=False))
    in_texts = Counter(pair for row in rows for pair in set(zip([0, *row], row, strict=False)))
    before = Counter(first for row in rows for first in [0, *row[:-1]])
    wanted = {p: pairs[p] / before[p[0]] for p in sorted(pairs) if in_texts[p] >= 5 and p[1] in kept}
    named = [(0 if a < 0 else kept[a], kept[b]) for a, b in found.pairs.tolist()]
    assert named == list(wanted)
    torch.testing.assert_close(found.follow, torch.tensor(list(wanted.values())))
    assert found.length == round(sum(map(len, rows)) / len(rows))


@pytest.mark.parametrize("span", [1, 2])
def test_class_means_match_under_random_embeddings(span: int) -> None:
    """Better than by as many private texts, and far better than by those of another class."""
    texts, other = draw_texts(300), draw_texts(300, seed=5, shift=40)
    made = written(texts, count=20, fewest=2)
    gaps = torch.zeros(3)
    for seed in range(10):
        goal = embedded_means(texts, span, seed)
        gaps += torch.stack([(embedded_means(t, span, seed) - goal).norm() for t in (made, texts[:20], other)])
    assert gaps[0] < gaps[1]
    assert gaps[0] < 0.5 * gaps[2]


def test_more_texts_match_better() -> None:
    found = frequencies(texts := draw_texts(300), VOCABULARY, fewest=2)
    gaps = [float(found.distance(written(texts, count, fewest=2))) for count in (1, 4, 16, 64)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.02 * gaps[0]


def test_rare_tokens_never_leave() -> None:
    texts = draw_texts(80)
    texts[:4, 2] = 199  # a name in four texts
    texts[:4, 3] = 198
    texts[4, 4] = 198
    made = written(texts, count=60)
    assert 199 not in made
    assert 198 in made
    assert fewest_texts(made, texts) >= 5


def test_no_run_of_a_private_text_leaves() -> None:
    texts = draw_texts(300)
    assert longest_common_run(written(texts, count=50, fewest=1), texts) == LONGEST_RUN
    lonely = torch.arange(1, WIDTH + 1).repeat(9, 1)  # every pair is frequent, so that the whole text tempts
    assert longest_common_run(written(lonely, count=5), lonely) <= LONGEST_RUN


def test_a_draw_gives_the_same_texts_and_another_one_others() -> None:
    texts = draw_texts(80)
    assert torch.equal(written(texts), written(texts))
    assert not torch.equal(written(texts), written(texts, seed=1))


def test_texts_have_the_mean_length_and_padding_at_the_end() -> None:
    texts = draw_texts(80)
    made = written(texts)
    assert find_text_fault(made, VOCABULARY) == ""
    mean = round(float((texts != 0).sum(dim=1).float().mean()))
    assert (made != 0).sum(dim=1).tolist() == [mean] * 10


def test_padding_at_the_start_makes_no_difference() -> None:
    texts = draw_texts(80)
    moved = torch.stack([row.roll(int((row == 0).sum())) for row in texts])
    assert torch.equal(written(moved), written(texts))


def test_special_tokens_stay_at_the_ends() -> None:
    texts = torch.zeros(80, WIDTH + 3, dtype=torch.int64)
    texts[:, 1 : WIDTH + 1] = draw_texts(80)
    texts[:, 0] = 190
    lengths = (texts != 0).long().cumprod(dim=1).sum(dim=1)
    texts *= torch.arange(WIDTH + 3) < lengths[:, None]
    texts[torch.arange(80), lengths] = 191
    made = written(texts)
    assert (made[:, 0] == 190).all()
    assert ((made == 190).sum(dim=1) == 1).all()
    last = (made != 0).sum(dim=1) - 1
    assert (made[torch.arange(10), last] == 191).all()
    assert ((made == 191).sum(dim=1) == 1).all()
    assert longest_common_run(made, texts) <= LONGEST_RUN


def test_a_token_that_ends_few_texts_is_no_special_token() -> None:
    texts = draw_texts(80).clamp_min(1)  # all are cut
    texts[0, -2:] = torch.tensor([199, 0])  # but one
    assert 199 not in written(texts)


def test_a_class_without_tokens_that_may_be_sent_is_not_sent() -> None:
    texts = draw_texts(40)
    texts[20:] = 1 + torch.arange(20 * WIDTH).view(20, WIDTH) % 150  # class 1: every token in four texts at most
    private = TextSet(texts, (torch.arange(40) >= 20).long())
    found = private_statistics(private, classes=3, vocabulary=VOCABULARY, fewest=5)
    assert found.counts.tolist() == [20, 20, 0]
    owned = found.usable(5)
    assert owned.tolist() == [True, False, False]
    made, distance = write_texts(found, owned, 4, WIDTH, rng())
    assert not made[1:].any()
    assert distance == found.classes[0].distance(made[0])


def test_few_tokens_end_a_text_early() -> None:
    only = Frequencies(torch.tensor([5]), torch.ones(1), torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0), 9)
    private = runs(torch.full((1, 9), 5), LONGEST_RUN + 1)
    assert write(only, 2, 12, rng(), private).sum(dim=1).tolist() == [5 * LONGEST_RUN] * 2


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([[1, 2, 0], [1, 0, 0]], ""),
        ([[1, 200, 0]], "a token id outside the vocabulary of 200"),
        ([[1, -1, 0]], "a token id outside the vocabulary of 200"),
        ([[1, 0, 2]], "padding (0) before a token"),
        ([[1, 2, 3], [0, 0, 0]], "a text without tokens"),
    ],
)
def test_faults_of_token_ids(texts: list[list[int]], why: str) -> None:
    assert find_text_fault(torch.tensor(texts, dtype=torch.int32), VOCABULARY) == why
