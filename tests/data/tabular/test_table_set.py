"""Rows as samples: their encoder, and augmentations before it."""

import pytest
import torch

from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.encoder import Encoder, Encoding
from fedchoir.data.tabular.table_set import DROPOUT, NOISE, TableSet
from fedchoir.utils.errors import UsageError

COLUMNS = (Column("age"), Column("chol"), Column("sex", "boolean"), Column("cp", "categorical", ("a", "b", "c")))


def example(count: int = 2000) -> TableSet:
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(count, 2, generator=draw) * torch.tensor([9.0, 50.0]) + torch.tensor([50.0, 200.0])
    codes = torch.stack([torch.randint(n, (count,), generator=draw) for n in (2, 3)], dim=1)
    return TableSet(torch.cat([numbers, codes.float()], dim=1), codes[:, 0].long(), COLUMNS)


def test_training_rows_have_their_own_encoder_and_refit_it() -> None:
    rows = example()
    half = rows.subset(torch.arange(1000))
    assert rows.transform == Encoder.fit(rows.inputs, COLUMNS, Encoding())
    assert half.transform == Encoder.fit(half.inputs, COLUMNS, Encoding())
    assert half.joined(rows.subset(torch.arange(1000, 2000))).transform == rows.transform
    assert rows.input_spec.shape == rows.transform(rows.inputs).shape[1:] == (6,)


def test_rows_for_every_client_have_no_encoder_of_their_own() -> None:
    rows = example()
    test = rows.for_every_client()
    assert test.transform is None
    assert test.subset(torch.arange(5)).transform is None
    assert test.input_spec == rows.input_spec
    given = TableSet(rows.inputs, rows.labels, COLUMNS, encoder=rows.transform)
    assert given.for_every_client().transform == rows.transform


def test_noise_changes_numbers_by_a_share_of_their_deviation() -> None:
    rows = example()
    changed = rows.augment(rows.inputs, "noise", torch.Generator().manual_seed(1))
    assert torch.equal(changed[:, 2:], rows.inputs[:, 2:])
    relative = (changed - rows.inputs)[:, :2].std(0) / rows.inputs[:, :2].std(0)
    assert torch.allclose(relative, torch.full((2,), NOISE), rtol=0.1)


def test_feature_dropout_makes_cells_missing() -> None:
    rows = example()
    dropped = rows.augment(rows.inputs, "feature-dropout", torch.Generator().manual_seed(1))
    missing = dropped.isnan()
    assert missing.float().mean().item() == pytest.approx(DROPOUT, abs=0.02)
    assert torch.equal(dropped[~missing], rows.inputs[~missing])
    assert rows.transform is not None
    assert rows.transform(dropped).isfinite().all()


def test_augmentations_are_derived_from_the_generator() -> None:
    rows = example(50)
    one, two, other = (rows.augment(rows.inputs, "strong", torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one.nan_to_num(-1), two.nan_to_num(-1))
    assert not torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))
    assert torch.equal(rows.augment(rows.inputs, "none", torch.Generator()), rows.inputs)
    with pytest.raises(UsageError, match="'fccl' is not possible for table samples; choose one of none, weak, strong"):
        rows.augment(rows.inputs, "fccl", torch.Generator())


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 N×4 wanted"):
        TableSet(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), COLUMNS)
