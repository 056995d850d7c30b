from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from fedchoir.data.image.image_set import (
    ImageSet,
    as_images,
    concatenate,
    image_hashes,
    images_digest,
    normalise,
    resize,
)
from fedchoir.data.splits import add_label_noise, apportion, complement, held_out, stratified_sample, unseen


def random_set(count: int, classes: int = 4, side: int = 8, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % classes)


def test_normalise_is_torchvisions_for_bytes_and_floats():
    images = random_set(5).images
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = v2.functional.normalize(images.float() / 255, list(mean), list(std))
    torch.testing.assert_close(normalise(images, mean, std), expected)
    torch.testing.assert_close(normalise(images.float() / 255, mean, std), expected)
    assert normalise(images, mean, std).dtype == torch.float32


def test_normalise_can_be_used_for_gradients_after_first_use_in_inference_mode():
    images = random_set(2).images.float()
    with torch.inference_mode():
        normalise(images, (0.7, 0.1, 0.1), (0.3, 0.3, 0.3))
    wanted = images.clone().requires_grad_()
    normalise(wanted, (0.7, 0.1, 0.1), (0.3, 0.3, 0.3)).sum().backward()
    assert wanted.grad is not None


def test_image_set_checks_shapes_and_dtypes():
    with pytest.raises(ValueError, match="uint8 N×3×S×S wanted, not float32 2×3×4×4"):
        ImageSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64 N=2"):
        ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_subset_concatenate_and_to():
    images = random_set(6)
    part = images.subset(torch.tensor([4, 0]))
    assert part.labels.tolist() == [0, 0]
    assert torch.equal(part.images[0], images.images[4])
    assert len(images.subset(images.labels == 1)) == 2
    both = concatenate(images, part)
    assert len(both) == 8
    assert both.mean == images.mean
    assert images.to("meta").images.device.type == "meta"


@pytest.mark.parametrize("shape", [(5, 9, 9), (5, 9, 9, 1), (5, 9, 9, 3), (5, 1, 9, 9), (5, 3, 9, 9), (5, 7, 11, 3)])
def test_usual_layouts_become_channels_first_bytes(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images = as_images(array, 16)
    assert images.shape == (5, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()


def test_layouts_of_the_same_image_agree():
    array = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    last = as_images(array, 8)
    assert torch.equal(last, as_images(array.transpose(0, 3, 1, 2), 8))
    assert torch.equal(last, torch.from_numpy(array).permute(0, 3, 1, 2))
    assert torch.equal(last, as_images(array / 255.0, 8))
    assert torch.equal(last, as_images(array.astype(np.int64), 8))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), np.uint8), "shape"),
        (np.zeros((2, 8, 8, 4), np.uint8), "shape"),
        (np.zeros((0, 8, 8), np.uint8), "holds no image"),
        (np.full((1, 8, 8), 300), "outside 0…255"),
        (np.full((1, 8, 8), 1.5), "outside 0…1"),
        (np.full((1, 8, 8), np.nan), "outside 0…1"),
        (np.full((1, 8, 8), "a"), "uint8 wanted"),
    ],
)
def test_other_arrays_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        as_images(array, 8)


def test_resize_agrees_with_torchvision():
    images = random_set(3, side=28).images
    expected = v2.functional.resize(images, [32, 32], antialias=True)
    assert (resize(images, 32).int() - expected.int()).abs().max() <= 1


def test_hashes_and_digest_see_every_pixel():
    images = random_set(4).images
    changed = images.clone()
    changed[2, 1, 3, 3] ^= 1
    assert [a == b for a, b in zip(image_hashes(images), image_hashes(changed), strict=True)] == [1, 1, 0, 1]
    assert images_digest(images) != images_digest(changed)
    assert images_digest(images) == images_digest(images.clone())


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
    assert not set(image_hashes(train.images)) & set(image_hashes(test.images))
    assert set(test.labels.tolist()) == set(range(10))


def test_held_out_split_keeps_copies_together():
    images = random_set(20)
    doubled = concatenate(images, images)
    train, test = held_out(doubled, torch.Generator().manual_seed(0))
    assert not set(image_hashes(train.images)) & set(image_hashes(test.images))
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
    assert torch.equal(noisy.images, images.images)
    steps = set(((noisy.labels - images.labels) % 5)[changed].tolist())
    assert steps == ({1} if kind == "pair" else {1, 2, 3, 4})
