"""Image sets: conversion, normalisation, resizing, hashes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from fedchoir.data.image.image_set import (
    ImageSet,
    as_images,
    images_digest,
    normalise,
    resize,
)


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


def test_subset_joined_and_to():
    images = random_set(6)
    part = images.subset(torch.tensor([4, 0]))
    assert part.labels.tolist() == [0, 0]
    assert torch.equal(part.images[0], images.images[4])
    assert len(images.subset(images.labels == 1)) == 2
    both = images.joined(part)
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
    whole = random_set(4)
    images, changed = whole.images, whole.images.clone()
    changed[2, 1, 3, 3] ^= 1
    other = ImageSet(changed, whole.labels)
    assert [a == b for a, b in zip(whole.hashes(), other.hashes(), strict=True)] == [1, 1, 0, 1]
    assert images_digest(images) != images_digest(changed)
    assert images_digest(images) == images_digest(images.clone())
