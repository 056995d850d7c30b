"""A release with noise: what one sample can change, and what the noise is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from fedchoir.condensation.private_release import COUNT_SHARE, Bank, exact_sums, release
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.samples import Samples
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.encoder import Encoding
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

CPU = torch.device("cpu")
BANK = Bank.draw(InputSpec.image(8), 8, 4, seed=0, device=CPU)


def images(count: int, seed: int = 0) -> ImageSet:
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=draw, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3)


def silent(shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(*shape)


def vector(private: Samples, bank: Bank = BANK) -> torch.Tensor:
    """Everything that gets noise, one row for each class."""
    counts, sums = exact_sums(private, bank, 3)
    return torch.cat([counts.unsqueeze(1), *sums], dim=1)


@pytest.mark.parametrize("left_out", [0, 7, 29])
def test_one_sample_changes_one_row_by_at_most_one(left_out: int) -> None:
    private = images(30)
    kept = torch.arange(30) != left_out
    change = vector(private) - vector(private.subset(kept))
    norms = change.norm(dim=1)
    own = left_out % 3
    assert 0.99 < norms[own] <= 1.0
    assert norms[torch.arange(3) != own].max() < 1e-6


COLUMNS = (Column("dose", min=0.0, max=10.0), Column("stage", "categorical", ("a", "b", "c")))


def rows(count: int, scaling: Literal["own", "agreed"]) -> TableSet:
    draw = torch.Generator().manual_seed(1)
    dose, stage = torch.rand(count, generator=draw) * 10, torch.randint(0, 3, (count,), generator=draw)
    dose[0] = 1e4  # far from all others
    cells = torch.stack([dose, stage.float()], dim=1)
    return TableSet(cells, torch.arange(count) % 3, COLUMNS, Encoding(scaling=scaling))


@pytest.mark.parametrize("left_out", [0, 7])
def test_one_row_of_a_table_with_agreed_scaling_changes_as_little(left_out: int) -> None:
    private = rows(30, "agreed")
    bank = Bank.draw(private.input_spec, 8, 4, seed=0, device=CPU)
    change = vector(private, bank) - vector(private.subset(torch.arange(30) != left_out), bank)
    norms = change.norm(dim=1)
    assert 0.99 < norms[left_out % 3] <= 1.0
    assert norms[torch.arange(3) != left_out % 3].max() < 1e-6


def test_samples_that_are_scaled_by_their_own_statistics_are_refused() -> None:
    """There one sample changes all others."""
    private = rows(30, "own")
    bank = Bank.draw(private.input_spec, 8, 4, seed=0, device=CPU)
    assert (vector(private, bank) - vector(private.subset(torch.arange(30) > 0), bank)).norm() > 2
    with pytest.raises(UsageError, match=r"for table samples that are scaled by .* set scaling to agreed"):
        release(private, bank, 3, silent)

    series = SeriesSet(torch.randn(30, 2, 16), torch.arange(30) % 3)
    bank = Bank.draw(series.input_spec, 8, 4, seed=0, device=CPU)
    with pytest.raises(UsageError, match=r"for series samples that are scaled by .* set release_noise to 0"):
        release(series, bank, 3, silent)


def test_the_release_without_noise_is_the_mean_of_embeddings() -> None:
    private = images(300)  # more than one chunk
    found = release(private, BANK, 3, silent)
    torch.testing.assert_close(found.counts, torch.full((3,), 100.0), rtol=1e-4, atol=0)
    pixels = private.inputs[private.labels == 1].float() / 255
    expected = BANK.embedders[2](BANK.changes[2](pixels)).mean(dim=0)
    torch.testing.assert_close(found.means[2][1], expected, rtol=1e-3, atol=1e-5)


def test_every_number_gets_noise_of_its_own() -> None:
    drawn: list[torch.Tensor] = []

    def noise(shape: Sequence[int]) -> torch.Tensor:
        drawn.append(torch.randn(*shape, generator=torch.Generator().manual_seed(len(drawn))))
        return drawn[-1]

    private = images(30)
    noisy, plain = release(private, BANK, 3, noise), release(private, BANK, 3, silent)
    assert [tuple(t.shape) for t in drawn] == [(3,), *[tuple(m.shape) for m in plain.means]]
    difference = (noisy.counts - plain.counts) * COUNT_SHARE**0.5
    torch.testing.assert_close(difference, drawn[0], rtol=1e-3, atol=1e-4)
    scale = ((1 - COUNT_SHARE) / 4) ** 0.5
    sums = [
        m * r.counts.clamp_min(1).unsqueeze(1) * scale for r, m in ((noisy, noisy.means[1]), (plain, plain.means[1]))
    ]
    torch.testing.assert_close(sums[0] - sums[1], drawn[2], rtol=1e-3, atol=1e-4)


def test_goals_take_the_networks_in_turn() -> None:
    found = release(images(30), BANK, 3, silent)
    for step in (0, 3, 4, 9):
        goal = found.goal(BANK, step)
        assert goal.embed is BANK.embedders[step % 4]
        assert goal.means is found.means[step % 4]
