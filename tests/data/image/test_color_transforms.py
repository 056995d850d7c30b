"""Color statistics against NumPy, and recolored images that have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir.data.image import color_transforms as module
from fedchoir.data.image.color_transforms import color_statistics, recolor, recolored, two_colors
from fedchoir.data.image.pixels import IMAGENET_MEAN, IMAGENET_STD, denormalise, normalise


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (20, 3, 8, 8), generator=seeded(0), dtype=torch.uint8)


@pytest.fixture
def colors(images: torch.Tensor) -> torch.Tensor:
    return torch.stack([color_statistics(images[:10]), color_statistics(images[10:] // 2)])


def test_statistics_are_a_mean_and_two_covariances_by_numpy(images):
    stats = color_statistics(images).double().numpy()
    x = images.numpy().astype(np.float64) / 255
    colours = x.mean(axis=(2, 3))
    between = np.cov(colours, rowvar=False, bias=True)
    within = np.mean([np.cov(image.reshape(3, -1), bias=True) for image in x], axis=0)
    np.testing.assert_allclose(stats[:, 0], colours.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(stats[:, 1:4] @ stats[:, 1:4].T, between, atol=5e-6)
    np.testing.assert_allclose(stats[:, 4:7] @ stats[:, 4:7].T, within, atol=5e-6)


def test_the_covariances_add_up_to_that_of_all_pixels(images):
    stats = color_statistics(images)
    total = sum(stats[:, part] @ stats[:, part].T for part in (slice(1, 4), slice(4, 7)))
    pixels = (images.float() / 255).transpose(0, 1).flatten(1)
    torch.testing.assert_close(total, torch.cov(pixels, correction=0), atol=1e-5, rtol=0)


def test_order_chunks_and_places_of_pixels_do_not_matter(images, monkeypatch):
    stats = color_statistics(images)
    torch.testing.assert_close(color_statistics(images.flip(0)), stats)
    torch.testing.assert_close(color_statistics(images.flatten(2)[:, :, torch.randperm(64)].view_as(images)), stats)
    monkeypatch.setattr(module, "float_chunk", lambda shape: 7)
    torch.testing.assert_close(color_statistics(images), stats)


@pytest.mark.parametrize("value", [0, 255])
def test_one_plain_image_has_statistics(value):
    stats = color_statistics(torch.full((1, 3, 4, 4), value, dtype=torch.uint8))
    torch.testing.assert_close(stats[:, 0], torch.full((3,), value / 255))
    assert stats[:, 1:].abs().max() < 2e-3


def test_a_recolored_image_has_the_given_mean_and_varies_along_the_contrast(images):
    pixels = images.float() / 255
    mean, contrast = (
        torch.full((20, 3, 1), 0.5),
        0.02 * torch.randn(20, 3, 1, generator=seeded(1)),
    )  # nothing is clamped
    seen = two_colors(pixels, mean, contrast).flatten(2)
    torch.testing.assert_close(seen.mean(dim=2, keepdim=True), mean)
    for image, direction in zip(seen, contrast, strict=True):
        torch.testing.assert_close(torch.cov(image, correction=0), direction @ direction.T, atol=1e-6, rtol=0)


def test_recoloring_ignores_brightness_and_contrast_and_keeps_the_sign(images):
    pixels = images.float() / 255
    mean, contrast = torch.full((20, 3, 1), 0.5), torch.full((20, 3, 1), 0.1)
    seen = two_colors(pixels, mean, contrast)
    torch.testing.assert_close(two_colors(0.3 * pixels + 0.2, mean, contrast), seen, atol=1e-4, rtol=0)
    torch.testing.assert_close(two_colors(1 - pixels, mean, -contrast), seen, atol=1e-4, rtol=0)


def test_a_plain_image_takes_the_mean_colour():
    mean = torch.tensor([0.1, 0.5, 0.9]).view(1, 3, 1)
    seen = two_colors(torch.full((1, 3, 4, 4), 0.3), mean, torch.ones(1, 3, 1))
    torch.testing.assert_close(seen, mean.unsqueeze(3).expand(1, 3, 4, 4), atol=1e-3, rtol=0)


def test_recolored_sets_have_the_requested_statistics():
    """Many recolored images have the requested statistics if no colour is clamped."""
    wanted = torch.tensor(
        [[0.5, 0.06, 0, 0, 0.05, 0, 0], [0.4, 0.02, 0.05, 0, 0.01, 0.06, 0], [0.6, 0, 0.01, 0.04, -0.02, 0.01, 0.03]]
    )
    pixels = torch.rand(4000, 3, 6, 6, generator=seeded(2))
    seen = recolor(pixels, wanted.unsqueeze(0), 1.0, seeded(3))
    got = color_statistics(seen.mul(255).round().byte())
    for part in (slice(1, 4), slice(4, 7)):
        torch.testing.assert_close(
            got[:, part] @ got[:, part].T, wanted[:, part] @ wanted[:, part].T, atol=4e-4, rtol=0
        )
    torch.testing.assert_close(got[:, 0], wanted[:, 0], atol=5e-3, rtol=0)


def test_range_determinism_and_untouched_input(images, colors):
    pixels = images.float() / 255
    before = pixels.clone()
    first, again, other = (recolor(pixels, colors, 0.5, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(pixels, before)
    assert first.min() >= 0
    assert first.max() <= 1
    wild = recolor(pixels, 1e6 * colors, 1.0, seeded(1))  # whatever another site sends
    assert wild.min() >= 0
    assert wild.max() <= 1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_that_is_recolored(colors, share):
    pixels = torch.rand(2000, 3, 4, 4, generator=seeded(4))
    changed = (recolor(pixels, colors, share, seeded(5)) != pixels).flatten(1).any(dim=1).float().mean()
    assert abs(changed - share) < 0.04


def test_all_statistics_are_used_and_images_drawn_individually():
    plain = torch.zeros(3, 3, 7)
    plain[:, :, 0] = torch.tensor([0.2, 0.5, 0.8]).unsqueeze(1)  # three means, no variation
    seen = recolor(torch.rand(300, 3, 4, 4, generator=seeded(6)), plain, 1.0, seeded(7))[:, 0, 0, 0]
    counts = torch.stack([(seen - mean).abs() < 1e-6 for mean in (0.2, 0.5, 0.8)]).sum(dim=1)
    assert counts.sum() == 300
    assert counts.min() > 60


def test_any_device_without_reading_back(colors):
    pixels = torch.empty(4, 3, 8, 8, device="meta")
    assert recolor(pixels, colors.to("meta"), 0.5, seeded(0)).device.type == "meta"


def test_normalised_images_are_recolored_in_their_own_scale(images, colors):
    pixels = images.float() / 255
    normal = normalise(images, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(denormalise(normal, IMAGENET_MEAN, IMAGENET_STD), pixels)
    seen = recolored(normal, lambda x, g: recolor(x, colors, 0.5, g), seeded(1), IMAGENET_MEAN, IMAGENET_STD)
    expected = normalise(recolor(pixels, colors, 0.5, seeded(1)), IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-4)
