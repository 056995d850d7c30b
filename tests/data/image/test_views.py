"""Views for self-supervised learning, against torchvision and by their properties."""

from __future__ import annotations

import inspect

import pytest
import torch
from tests.methods.ssl.one_client import one_client
from torchvision.transforms.v2 import functional as reference

from fedchoir.data.image.augment import STRONG, augment
from fedchoir.data.image.views import VIEWS, ViewParameters, blur, blur_and_solarise

IMAGES = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PIXELS = IMAGES.float() / 255


def test_blur_is_torchvisions_with_a_sigma_for_each_image() -> None:
    sigma = torch.linspace(0.3, 2.0, 4)
    found = blur(PIXELS[:4], sigma)
    for image, blurred, s in zip(PIXELS[:4], found, sigma.tolist(), strict=True):
        torch.testing.assert_close(blurred, reference.gaussian_blur(image, [13, 13], [s, s]), atol=1e-5, rtol=0)


def test_probabilities_are_shares_of_the_images() -> None:
    draw = torch.Generator().manual_seed(1)
    p = ViewParameters(solarise_probability=0.3)
    many = PIXELS.repeat(20, 1, 1, 1)
    changed = (blur_and_solarise(many, p, draw) != many).flatten(1).any(dim=1).float().mean()
    assert changed == pytest.approx(0.3, abs=0.05)
    solarised = blur_and_solarise(PIXELS, ViewParameters(solarise_probability=1.0), draw)
    torch.testing.assert_close(solarised, reference.solarize(PIXELS, 0.5))


@pytest.mark.parametrize("kind", list(VIEWS))
def test_every_set_keeps_the_range_and_follows_the_generator(kind: str) -> None:
    one, two = (augment(IMAGES, kind, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == IMAGES.shape
    assert 0 <= one.min() <= one.max() <= 1
    assert not torch.equal(one, augment(IMAGES, kind, torch.Generator().manual_seed(4)))


def test_the_released_parameters() -> None:
    """SimCLR's and BYOL's as lightly has them."""
    from lightly.transforms.byol_transform import BYOLView1Transform, BYOLView2Transform
    from lightly.transforms.simclr_transform import SimCLRViewTransform

    for kind, released in (
        ("simclr", SimCLRViewTransform), ("byol", BYOLView1Transform), ("byol-second", BYOLView2Transform),
    ):  # fmt: skip
        d = {n: p.default for n, p in inspect.signature(released).parameters.items()}
        p = VIEWS[kind]
        assert p.min_scale == d["min_scale"]
        assert p.jitter == (d["cj_bright"], d["cj_contrast"], d["cj_sat"], d["cj_hue"])
        assert (p.jitter_probability, p.grey_probability) == (d["cj_prob"], d["random_gray_scale"])
        assert p.blur_probability == d["gaussian_blur"]
        assert p.solarise_probability == d.get("solarization_prob", 0.0)
    assert STRONG.min_scale == 0.2  # the default for self-supervised methods has milder views


def test_byols_second_view_has_other_parameters() -> None:
    _, client = one_client(private_augment="byol")
    kinds = []
    augmented = type(client.private).augment

    class Spy(type(client.private)):  # type: ignore[misc]
        def augment(self, inputs: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
            kinds.append(kind)
            return augmented(self, inputs, kind, generator)

    client.private = Spy(client.private.inputs, client.private.labels)
    next(client.private_batches.batches(range(1), {}, views=2))
    assert kinds == ["byol", "byol-second"]
