"""Public sets by name and from own files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir.data.image.pixels import IMAGENET_MEAN
from fedchoir.data.image.public_images import PUBLIC
from fedchoir.data.public import load_public
from fedchoir.utils.errors import UsageError


@pytest.fixture
def root(tmp_path, write_npz):
    for name in ("cifar100", "tiny_imagenet", "fashion_mnist"):
        write_npz(tmp_path / f"{name}.npz", train=50, shape=(28, 28) if "mnist" in name else (32, 32, 3))
    return tmp_path


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_named_sets(root, name):
    public = load_public(name, root=root, seed=1, size=40)
    assert public.name == name
    assert public.samples.inputs.shape == (40, 3, 32, 32)
    assert public.samples.inputs.dtype == torch.uint8
    assert public.digest == public.samples.digest()
    assert len(public) == 40


def test_draws_follow_the_seed_and_so_does_the_digest(root):
    one, same, other = (load_public("cifar100", root=root, seed=s, size=20) for s in (1, 1, 2))
    assert one.digest == same.digest != other.digest
    everything = load_public("cifar100", root=root, seed=1)
    assert len(everything) == 50


def test_normalisation_constants_right_and_swapped(root):
    right = {n: load_public(n, root=root).samples.mean for n in PUBLIC}
    swapped = {n: load_public(n, root=root, normalisation="swapped").samples.mean for n in PUBLIC}
    assert right["cifar100"] == swapped["tiny-imagenet"] == (0.5071, 0.4867, 0.4408)
    assert right["tiny-imagenet"] == swapped["cifar100"]
    assert right["photos"] == swapped["photos"]
    assert right["fashion-mnist"] == swapped["fashion-mnist"]
    with pytest.raises(UsageError, match="normalisation: 'left' is not one of correct, swapped"):
        load_public("photos", normalisation="left")


def test_more_images_than_there_are(root):
    with pytest.raises(UsageError, match="public_size: 51 samples wanted, but cifar100 has 50"):
        load_public("cifar100", root=root, size=51)
    public = load_public("cifar100", root=root, size=51, strict=False)
    assert len(public) == 50
    assert public.notes[-1] == "public set cifar100: all 50 samples used, 51 requested"
    assert public.notes[0].startswith("public set cifar100: 50 training images found")


def test_photos_need_no_root_and_can_be_resized():
    assert load_public("photos", size=10, image_size=24).samples.inputs.shape == (10, 3, 24, 24)


def test_own_folder_and_npz(tmp_path, write_tree):
    write_tree(tmp_path / "pictures", ["beach", "hill"], per_class=3)
    np.savez(tmp_path / "own.npz", x=np.zeros((7, 8, 8), np.uint8))
    folder = load_public(str(tmp_path / "pictures"), size=4)
    assert (len(folder), folder.samples.mean) == (4, IMAGENET_MEAN)
    assert len(load_public(str(tmp_path / "own.npz"))) == 7


@pytest.mark.parametrize("name", ["nothing", "absent.npz"])
def test_unknown_sets(name):
    with pytest.raises(UsageError, match=f"public: '{name}' is neither one of photos, cifar100"):
        load_public(name)


def test_bad_sizes_and_empty_folders(tmp_path):
    with pytest.raises(UsageError, match="public_size: 0 given"):
        load_public("photos", size=0)
    with pytest.raises(UsageError, match="holds no images"):
        load_public(str(tmp_path))
    with pytest.raises(UsageError, match=r"cifar100: no cifar100\.npz or cifar-100-python"):
        load_public("cifar100", root=tmp_path)
