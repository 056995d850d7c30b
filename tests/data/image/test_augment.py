"""Augmentations against torchvision, with individual parameters for every image."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from fedchoir.data.image import augment as module
from fedchoir.data.image.augment import affine, augment, draw_boxes, grey, jitter, resized_crop, rotate, shift, turn_hue
from fedchoir.data.image.color_transforms import WIDE_COLORS, recolor
from fedchoir.utils.errors import UsageError

KINDS = ["none", "weak", "strong", "crop-flip", "fccl", "affine", "recolor", "affine-recolor"]
tv = v2.functional


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[(32, 32), (24, 40)], ids=["square", "wide"])
def images(request: pytest.FixtureRequest) -> torch.Tensor:
    return torch.randint(0, 256, (16, 3, *request.param), generator=seeded(0), dtype=torch.uint8)


@pytest.fixture
def pixels(images: torch.Tensor) -> torch.Tensor:
    smooth = torch.nn.functional.avg_pool2d(images.float() / 255, 3, stride=1, padding=1)
    return (smooth - smooth.amin()) / (smooth.amax() - smooth.amin())


@pytest.mark.parametrize("kind", KINDS)
def test_shape_range_determinism_and_untouched_input(images, kind):
    before = images.clone()
    first, again, other = (augment(images, kind, seeded(s)) for s in (1, 1, 2))
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (kind == "none")
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", ["weak", "strong", "crop-flip", "fccl", "affine", "affine-recolor"])
def test_every_sample_has_its_own_parameters(images, kind):
    same = images[:1].expand(8, -1, -1, -1)
    seen = augment(same, kind, seeded(3))
    assert len({row.numpy().tobytes() for row in seen}) == 8


@pytest.mark.parametrize("kind", KINDS)
def test_any_device_without_reading_back(images, kind):
    # A meta tensor has no values: mixing devices or asking for a value on the host would raise.
    assert augment(images.to("meta"), kind, seeded(0)).device.type == "meta"


@pytest.mark.parametrize("kind", KINDS)
def test_other_sizes_and_single_images(kind):
    for batch, side in ((1, 8), (3, 17), (2, 64)):
        assert augment(torch.zeros(batch, 3, side, side, dtype=torch.uint8), kind, seeded(0)).shape[-1] == side


def test_none_only_scales(images):
    torch.testing.assert_close(augment(images, "none", seeded(0)), images.float() / 255)


def test_unknown_kind_is_a_usage_error(images):
    with pytest.raises(UsageError, match=f"'wild' is not one of {', '.join(KINDS)}"):
        augment(images, "wild", seeded(0))


def test_crop_is_torchvisions_resized_crop(pixels):
    size = pixels.shape[-2:]
    boxes = draw_boxes(16, *size, seeded(4))
    flipped = torch.arange(16) % 2 == 0
    ours = resized_crop(pixels, boxes, flipped)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        theirs = tv.resized_crop(pixels[i], top, left, height, width, list(size), antialias=False)
        theirs = tv.horizontal_flip(theirs) if flipped[i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_boxes_fit_and_cover_the_scales(size):
    boxes = draw_boxes(5000, *size, seeded(0)).float()
    top, left, height, width = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (top + height <= size[0]).all()
    assert (left + width <= size[1]).all()
    area = height * width / (size[0] * size[1])
    assert 0.17 < float(area.min()) < 0.25
    assert float(area.max()) > 0.95
    ratio = (width / height)[area < 1]  # the whole image is taken where no draw fits
    assert float(ratio.min()) > 0.7
    assert float(ratio.max()) < 1.43


def test_shift_is_a_crop_after_padding(pixels):
    top, left = torch.tensor([-4, 0, 3, 4]), torch.tensor([2, 0, -4, 4])
    flipped = torch.tensor([False, True, True, False])
    ours = shift(pixels[:4], top, left, flipped)
    for i in range(4):
        padded = tv.pad(pixels[i], [4, 4, 4, 4])
        theirs = tv.crop(padded, int(top[i]) + 4, int(left[i]) + 4, *pixels.shape[-2:])
        theirs = tv.horizontal_flip(theirs) if flipped[i] else theirs
        torch.testing.assert_close(ours[i], theirs)


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (16, 2), (64, 8)])
def test_crop_flip_draws_what_torchvisions_random_crop_and_flip_draw(size, padding):
    """Both see an image whose every pixel is different, so that an output tells its offsets, flip and padding."""
    image = (torch.arange(size * size) % 4093 + 1).view(1, size, size)  # no pixel is 0
    image = torch.cat([image % 251 + 1, image // 251 + 1, torch.ones_like(image)]).to(torch.uint8)
    crops = {}
    padded = tv.pad(image, [padding] * 4)
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = tv.crop(padded, top, left, size, size)
            crops[crop.numpy().tobytes()] = (top, left, False)
            crops[tv.horizontal_flip(crop).numpy().tobytes()] = (top, left, True)
    assert len(crops) == 2 * (2 * padding + 1) ** 2
    draws = 3000

    torch.manual_seed(0)
    reference = v2.Compose([v2.RandomCrop(size, padding=padding), v2.RandomHorizontalFlip()])
    theirs = [crops[reference(image).numpy().tobytes()] for _ in range(draws)]
    batch = augment(image.expand(draws, -1, -1, -1), "crop-flip", seeded(8))
    ours = [crops[row.mul(255).round().to(torch.uint8).numpy().tobytes()] for row in batch]  # a KeyError: another image

    for column, values in ((0, range(2 * padding + 1)), (1, range(2 * padding + 1)), (2, (False, True))):
        expected = 1 / len(values)
        for drawn in (ours, theirs):
            shares = torch.tensor([sum(d[column] == value for d in drawn) / draws for value in values])
            assert (shares - expected).abs().max() < 4.5 * (expected * (1 - expected) / draws) ** 0.5
    pairs = torch.tensor(ours).float()  # rows, columns and flips are independent
    assert (torch.corrcoef(pairs.T) - torch.eye(3)).abs().max() < 0.08


def test_rotation_is_torchvisions(pixels):
    degrees = torch.linspace(-15, 15, 16)
    ours = rotate(pixels, degrees)
    for i, angle in enumerate(degrees.tolist()):
        theirs = tv.rotate(pixels[i], angle)
        different = (ours[i] != theirs).any(dim=0).float().mean()
        assert different < 0.01  # ties between two nearest pixels


def test_affine_is_torchvisions_where_nothing_comes_from_outside(pixels):
    degrees, zoom = torch.linspace(-15, 15, 16), torch.linspace(0.8, 1.25, 16)
    move = torch.randint(-3, 4, (2, 16), generator=seeded(6)).float()
    ours = affine(pixels, degrees, zoom, move)
    for i in range(16):
        down, right = move[:, i].tolist()
        how = {"angle": -float(degrees[i]), "translate": [right, down], "scale": float(zoom[i]), "shear": [0.0, 0.0]}
        how["interpolation"] = v2.InterpolationMode.BILINEAR
        theirs, inside = tv.affine(pixels[i], **how), tv.affine(torch.ones(1, *pixels.shape[-2:]), **how) > 0.99999
        assert inside.float().mean() > 0.4
        torch.testing.assert_close(ours[i][:, inside[0]], theirs[:, inside[0]], atol=1e-4, rtol=0)


def test_recolor_changes_half_of_the_images_to_wide_colors(images):
    seen = augment(images, "recolor", seeded(7))
    assert torch.equal(seen, recolor(images.float() / 255, WIDE_COLORS, 0.5, seeded(7)))
    both, moved = (augment(images, kind, seeded(7)) for kind in ("affine-recolor", "affine"))
    plain = (both == moved).flatten(1).all(dim=1)
    assert 2 < int(plain.sum()) < 14


def test_affine_shows_the_border_where_the_image_ends():
    plain = torch.full((4, 3, 16, 16), 0.7)
    seen = affine(plain, torch.full((4,), 15.0), torch.full((4,), 0.8), torch.full((2, 4), 3.0))
    torch.testing.assert_close(seen, plain)


@pytest.mark.parametrize("seed", [0, 1])
def test_jitter_is_torchvisions_in_the_documented_order(pixels, seed):
    factors = torch.rand(4, 16, generator=seeded(seed))
    brightness, contrast, saturation = 0.6 + 0.8 * factors[:3]
    hue = (factors[3] - 0.5) * 0.2
    ours = jitter(pixels, brightness, contrast, saturation, hue)
    for i in range(16):
        theirs = tv.adjust_brightness(pixels[i], float(brightness[i]))
        theirs = tv.adjust_contrast(theirs, float(contrast[i]))
        theirs = tv.adjust_saturation(theirs, float(saturation[i]))
        theirs = tv.adjust_hue(theirs, float(hue[i]))
        torch.testing.assert_close(ours[i], theirs, atol=1e-4, rtol=0)


def test_hue_turns_on_grey_black_white_and_pure_colours():
    colours = torch.tensor([[0.5, 0.5, 0.5], [0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    pixels = colours.view(-1, 3, 1, 1)
    for turn in (-0.5, -0.1, 0.0, 1 / 3, 0.5):
        theirs = torch.stack([tv.adjust_hue(p, turn) for p in pixels])
        torch.testing.assert_close(turn_hue(pixels, torch.full((7,), turn)), theirs, atol=1e-5, rtol=0)
    thirds = turn_hue(pixels[3:4], torch.tensor([1 / 3])).flatten()
    torch.testing.assert_close(thirds, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)


def test_grey_is_torchvisions(pixels):
    torch.testing.assert_close(grey(pixels), tv.rgb_to_grayscale(pixels), atol=1e-5, rtol=0)


def test_strong_greys_a_fifth_and_jitters_four_fifths(monkeypatch):
    monkeypatch.setattr(module, "resized_crop", lambda pixels, boxes, flipped: pixels)
    base = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1).expand(2000, 3, 8, 8)
    seen = augment(base, "strong", seeded(0))
    greyed = (seen.amax(dim=1) - seen.amin(dim=1)).amax(dim=(1, 2)) < 1e-6
    same = (seen - base / 255).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert 0.16 < float(greyed.float().mean()) < 0.24
    assert 0.12 < float(same.float().mean()) < 0.20  # 0.2 not jittered × 0.8 not grey
