"""The validation share: disjoint, stratified, the same in every run, and refused where there are too few samples."""

from __future__ import annotations

import pytest
import torch

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import DataOptions, load_scenario
from fedchoir.data.validation import validation_split, with_validation
from fedchoir.utils.errors import UsageError


def samples(counts: list[int]) -> ImageSet:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    draw = torch.Generator().manual_seed(2)
    return ImageSet(torch.randint(0, 256, (len(labels), 3, 4, 4), dtype=torch.uint8, generator=draw), labels)


def test_classes_are_in_proportion_and_no_sample_is_on_both_sides() -> None:
    whole = samples([100, 40, 20])
    train, validation = validation_split("a", whole, 0.25)
    assert validation is not None
    assert validation.labels.bincount().tolist() == [25, 10, 5]
    assert sorted(train.hashes() + validation.hashes()) == sorted(whole.hashes())


def test_the_split_depends_on_the_client_alone() -> None:
    whole = samples([30, 30])
    one, again, other = (validation_split(name, whole, 0.2)[1] for name in ("a", "a", "b"))
    assert one is not None
    assert again is not None
    assert other is not None
    assert one.hashes() == again.hashes() != other.hashes()


def test_copies_of_a_training_sample_stay_with_it() -> None:
    whole = samples([10, 10])
    doubled = whole.joined(whole)
    train, validation = validation_split("a", doubled, 0.3)
    assert validation is not None
    assert not set(train.hashes()) & set(validation.hashes())


def test_a_scenario_has_a_share_of_every_client_and_a_note() -> None:
    plain = load_scenario("digits-lite", options=DataOptions(private=(20,)))
    assert with_validation(plain, 0) is plain
    split = with_validation(plain, 0.1)
    assert [len(c.train) + len(c.validation or ()) for c in split.clients] == [20] * 4
    assert all(c.validation is not None and len(c.validation) == 2 for c in split.clients)
    assert "a share of 0.1 of every client's training samples" in split.notes[-1]


@pytest.mark.parametrize(("counts", "share"), [([4], 0.1), ([2, 2], 0.75)])
def test_too_few_samples(counts: list[int], share: float) -> None:
    with pytest.raises(
        UsageError, match=f"validation = {share} is not possible with the 4 training samples of client a"
    ):
        validation_split("a", samples(counts), share)
