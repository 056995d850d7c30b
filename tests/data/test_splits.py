"""Stratified samples, held-out splits, leak removal and label noise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.splits import add_label_noise, apportion, complement, held_out, stratified_sample, unseen


def random_set(count: int, classes: int = 4, side: int = 8, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % classes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_stratified_samples_have_the_size_and_miss_no_class(labels, data):
    size = data.draw(st.integers(1, len(labels)))
    tensor = torch.tensor(labels)
    index = stratified_sample(tensor, size, torch.Generator().manual_seed(0))
    assert len(set(index.tolist())) == len(index) == size
    if size >= len(set(labels)):
        assert set(tensor[index].tolist()) == set(labels)
    rest = complement(index, len(labels))
    assert sorted(index.tolist() + rest.tolist()) == list(range(len(labels)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.integers(0, 200))
def test_apportioned_numbers_sum_and_stay_near_their_shares(weights, total):
    counts = apportion(torch.tensor(weights), total)
    assert int(counts.sum()) == total
    exact = torch.tensor(weights, dtype=torch.float64) * total / sum(weights)
    assert ((counts - exact).abs() < 1 + 1e-9).all()


def test_held_out_split_is_80_to_20_per_class_and_disjoint():
    images = random_set(958, classes=10)
    train, test = held_out(images, torch.Generator().manual_seed(0))
    assert (len(train), len(test)) == (766, 192)  # the paper's arithmetic for Amazon of Office-Caltech
    assert not set(train.hashes()) & set(test.hashes())
    assert set(test.labels.tolist()) == set(range(10))


def test_held_out_split_keeps_copies_together():
    images = random_set(20)
    doubled = images.joined(images)
    train, test = held_out(doubled, torch.Generator().manual_seed(0))
    assert not set(train.hashes()) & set(test.hashes())
    assert len(train) + len(test) == 40


def test_unseen_marks_copies():
    images = random_set(10)
    assert unseen(images, images.subset(torch.tensor([3, 7]))).nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_label_noise_changes_the_share_asked_for(kind):
    images = random_set(1000, classes=5)
    noisy, flips = add_label_noise(images, 5, 0.3, kind, torch.Generator().manual_seed(0))
    changed = noisy.labels != images.labels
    assert int(changed.sum()) == flips == 300
    assert torch.equal(noisy.inputs, images.inputs)
    steps = set(((noisy.labels - images.labels) % 5)[changed].tolist())
    assert steps == ({1} if kind == "pair" else {1, 2, 3, 4})
