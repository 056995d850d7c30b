"""Sizes and aspect ratios."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fedchoir.data.image.resize import Resize


def pixels(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_squash_agrees_with_torchvision(size):
    images = pixels(28, 35)
    expected = v2.functional.resize(images, list(size), antialias=True)
    assert (Resize.to(size).tensor(images).int() - expected.int()).abs().max() <= 1


def test_a_number_means_a_square():
    assert Resize.to(24) == Resize(24, 24, "squash")
    assert Resize.to((24, 32), "pad") == Resize(24, 32, "pad")


@pytest.mark.parametrize("aspect", ["squash", "pad", "crop"])
@pytest.mark.parametrize("shape", [(30, 60), (60, 30), (48, 64), (9, 200)])
def test_tensors_and_pillow_images_get_the_same_frame(aspect, shape):
    """A white image: borders are where an image is padded, and nowhere else; both paths agree within a pixel."""
    resize = Resize(24, 32, aspect)
    ours = resize.tensor(torch.full((1, 3, *shape), 255, dtype=torch.uint8))[0].permute(1, 2, 0).numpy()
    theirs = np.asarray(resize.image(Image.new("RGB", shape[::-1], "white")))
    assert ours.shape == theirs.shape == (24, 32, 3)
    if aspect != "pad":
        assert ours.min() == theirs.min() == 255
    for axis in (0, 1):
        assert abs(int(ours.any(axis=(axis, 2)).sum()) - int(theirs.any(axis=(axis, 2)).sum())) <= 1


def test_pad_keeps_everything_and_crop_keeps_the_centre():
    image = torch.zeros(1, 3, 20, 40, dtype=torch.uint8)
    image[..., :20] = 200  # the left half
    padded = Resize(20, 20, "pad").tensor(image)[0, 0]
    assert padded[:5].max() == padded[15:].max() == 0
    assert (padded[10] > 100).sum() == 10
    cropped = Resize(20, 20, "crop").tensor(image)[0, 0]
    assert torch.equal(cropped, image[0, 0, :, 10:30])


def test_images_of_the_right_size_are_not_touched():
    images = pixels(24, 32)
    for aspect in ("squash", "pad", "crop"):
        assert torch.equal(Resize(24, 32, aspect).tensor(images), images)
    assert Resize(8, 8).tensor(pixels(9, 9)[:0]).shape == (0, 3, 8, 8)
