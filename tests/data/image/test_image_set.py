"""Image sets: conversion, normalisation, resizing, hashes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fedchoir.data.image.color_transforms import color_statistics
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.pixels import as_images, normalise
from fedchoir.data.image.resize import Resize
from fedchoir.data.mapped import MappedTensor
from fedchoir.data.splits import held_out
from fedchoir.engines.messages import Envelope
from fedchoir.engines.multiprocess.data_transfer import from_frames, pack, to_frames, unpack


def random_set(count: int, classes: int = 4, side: int = 8, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % classes)


def test_normalise_is_torchvisions_for_bytes_and_floats():
    images = random_set(5).inputs
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = v2.functional.normalize(images.float() / 255, list(mean), list(std))
    torch.testing.assert_close(normalise(images, mean, std), expected)
    torch.testing.assert_close(normalise(images.float() / 255, mean, std), expected)
    assert normalise(images, mean, std).dtype == torch.float32


def test_normalise_can_be_used_for_gradients_after_first_use_in_inference_mode():
    images = random_set(2).inputs.float()
    with torch.inference_mode():
        normalise(images, (0.7, 0.1, 0.1), (0.3, 0.3, 0.3))
    wanted = images.clone().requires_grad_()
    normalise(wanted, (0.7, 0.1, 0.1), (0.3, 0.3, 0.3)).sum().backward()
    assert wanted.grad is not None


def test_image_set_checks_shapes_and_dtypes():
    with pytest.raises(ValueError, match="uint8 N×3×H×W wanted, not float32 2×3×4×4"):
        ImageSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64 N=2"):
        ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_subset_joined_and_to():
    images = random_set(6)
    part = images.subset(torch.tensor([4, 0]))
    assert part.labels.tolist() == [0, 0]
    assert torch.equal(part.inputs[0], images.inputs[4])
    assert len(images.subset(images.labels == 1)) == 2
    both = images.joined(part)
    assert len(both) == 8
    assert both.mean == images.mean
    assert images.to("meta").inputs.device.type == "meta"


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


def test_hashes_and_digest_see_every_pixel():
    whole = random_set(4)
    images, changed = whole.inputs, whole.inputs.clone()
    changed[2, 1, 3, 3] ^= 1
    other = ImageSet(changed, whole.labels)
    assert [a == b for a, b in zip(whole.hashes(), other.hashes(), strict=True)] == [1, 1, 0, 1]
    assert whole.digest() != other.digest()
    assert whole.digest() == ImageSet(images.clone(), whole.labels).digest()


@pytest.fixture
def mapped(tmp_path):
    """A set of 12 images in memory, and the same set in files."""
    images = random_set(12)
    paths = []
    for i, image in enumerate(images.inputs):
        paths.append(tmp_path / f"{i:02}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(paths[-1])
    loader = ImageLoader(Decoder(Resize.to(8)), tmp_path / "cache", memory=0)
    inputs, _ = loader.load(paths, tmp_path, "train")
    return images, ImageSet(inputs, images.labels)


def test_a_set_in_files_is_the_same_set(mapped):
    images, lazy = mapped
    index = torch.tensor([5, 3, 11])
    for one, two in (
        (images, lazy),
        (images.subset(index), lazy.subset(index)),
        (images.joined(images.subset(index)), lazy.joined(images.subset(index), lazy.subset(index[:0]))),
        (held_out(images, torch.Generator())[1], held_out(lazy, torch.Generator())[1]),
    ):
        assert isinstance(two.inputs, MappedTensor)
        assert torch.equal(one.inputs, two.inputs[:])
        assert torch.equal(one.labels, two.labels)
        assert one.hashes() == two.hashes()
        assert one.digest() == two.digest()
        assert one.input_spec == two.input_spec


def test_a_set_in_files_goes_to_another_device_and_process(mapped):
    images, lazy = mapped
    assert lazy.to("meta").inputs[:2].device.type == "meta"
    envelope = Envelope({})
    packed = pack(envelope, lazy.subset(torch.tensor([2, 7])))
    other = unpack(from_frames(to_frames(Envelope({"set": packed}, envelope.blobs))), packed)
    assert torch.equal(other.inputs[:], images.inputs[[2, 7]])
    assert sum(map(len, envelope.blobs)) < 1000


def test_color_statistics_of_a_set_in_files(mapped):
    images, lazy = mapped
    assert torch.equal(color_statistics(images.inputs), color_statistics(lazy.inputs))
