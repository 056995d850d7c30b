"""The space of condensation: what travels, smaller images in one, and one change for all samples."""

from __future__ import annotations

import pytest
import torch

from fedchoir.condensation.sample_space import as_samples, check_modality, decode, pack, siamese, unpack
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


def test_pixels_survive_the_journey_within_half_a_step() -> None:
    pixels = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    sent = pack(pixels, "image")
    assert sent.dtype == torch.uint8
    assert (unpack(sent) - pixels).abs().max() <= 0.5 / 255 + 1e-6
    numbers = torch.randn(4, 7)
    assert torch.equal(unpack(pack(numbers, "table")), numbers)
    tokens = torch.tensor([[7, 100_000, 0]])
    assert pack(tokens, "text").dtype == torch.int32
    assert torch.equal(unpack(pack(tokens, "text")), tokens)


def test_one_image_holds_four_smaller_ones_in_order() -> None:
    image = torch.zeros(1, 3, 8, 8)
    image[..., :4, 4:], image[..., 4:, :4], image[..., 4:, 4:] = 0.25, 0.5, 1.0
    for stored in (image, pack(image, "image")):
        found = unpack(decode(stored, 2))
        assert found.shape == (4, 3, 8, 8)
        torch.testing.assert_close(found.mean(dim=(1, 2, 3)), torch.tensor([0, 0.25, 0.5, 1.0]), atol=2e-3, rtol=0)
        assert found.std(dim=(2, 3)).max() < 1e-6


def test_decoding_has_a_gradient() -> None:
    image = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    decode(image, 2).sum().backward()
    assert image.grad is not None
    assert (image.grad > 0).all()


@pytest.mark.parametrize("modality", ["image", "series", "table"])
def test_a_change_is_the_same_for_every_sample(modality: str) -> None:
    shape = {"image": (3, 8, 8), "series": (2, 12), "table": (5,)}[modality]
    samples = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    change = siamese(modality, torch.Generator().manual_seed(1))
    torch.testing.assert_close(change(samples)[1:2], change(samples[1:2]))
    other = siamese(modality, torch.Generator().manual_seed(2))
    assert torch.equal(change(samples), other(samples)) == (modality == "table")


@pytest.mark.parametrize("modality", ["image", "series", "table"])
def test_received_samples_are_a_data_set_that_a_model_takes(modality: str) -> None:
    shape = {"image": (3, 8, 8), "series": (2, 12), "table": (5,)}[modality]
    packed = pack(torch.rand(3, *shape), modality)
    samples = as_samples(packed, torch.tensor([0, 1, 1]), modality)
    assert samples.transform is not None
    assert samples.transform(samples.inputs).shape == packed.shape
    assert samples.transform(samples.inputs).dtype == torch.float32


def test_received_texts_are_token_ids_that_can_be_augmented() -> None:
    tokens = torch.tensor([[5, 6, 7, 0], [8, 0, 0, 0]])
    samples = as_samples(pack(tokens, "text"), torch.tensor([0, 1]), "text")
    assert samples.transform is not None
    assert torch.equal(samples.transform(samples.inputs), tokens)
    assert samples.augment(samples.inputs, "strong", torch.Generator().manual_seed(0)).shape == tokens.shape


@pytest.mark.parametrize(
    ("inputs", "formation", "why"),
    [
        (InputSpec("text", (12,), vocabulary=99), 2, "formation = 2 is for images, not for text samples; set it to 1"),
        (InputSpec("table", (5,)), 2, "formation = 2 is for images, not for table samples; set it to 1"),
        (InputSpec.image(32), 3, "formation = 3 does not divide the image size"),
    ],
)
def test_what_cannot_be_condensed_is_refused(inputs: InputSpec, formation: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_modality(inputs, formation)
