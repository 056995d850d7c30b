"""Torch Datasets → samples: shapes, labels, modalities, and one line for what cannot be used."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.options import DataOptions
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.torch_datasets.convert import public_from, raw_from
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.utils.errors import UsageError

OPTIONS = DataOptions(image_size=16)


class Items(Dataset):  # type: ignore[type-arg]
    """A Dataset of given items, with attributes."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items = items
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_samples_keep_the_order_of_the_dataset() -> None:
    values = torch.arange(12.0).view(6, 2)
    raw = raw_from("a", Subset(TensorDataset(values, torch.tensor([5, 3, 5, 3, 3, 5])), [4, 0, 1]), None, OPTIONS)
    assert isinstance(raw.train, TensorSet)
    assert torch.equal(raw.train.inputs, values[[4, 0, 1]])
    assert (raw.train.labels.tolist(), raw.classes, raw.test) == ([0, 1, 0], ("3", "5"), None)


def test_class_names_and_a_test_split() -> None:
    train = Items([(torch.zeros(3), 2), (torch.ones(3), 0)], classes=["p", "q", "r"])
    test = Items([(np.ones(3), np.int64(1)), ([1, 2, 3], torch.tensor(0))])
    raw = raw_from("a", train, test, OPTIONS)
    assert raw.classes == ("p", "q", "r")
    assert raw.test is not None
    assert (raw.train.labels.tolist(), raw.test.labels.tolist()) == ([2, 0], [1, 0])
    named = raw_from("a", Items([(torch.zeros(3), "x"), (torch.ones(3), "b")]), None, OPTIONS)
    assert (named.classes, named.train.labels.tolist()) == (("b", "x"), [1, 0])


def test_several_tensors_are_stored_one_after_the_other() -> None:
    items = [((torch.full((2, 2), float(i)), torch.tensor([1.0, 2.0, 3.0])), i) for i in range(3)]
    samples = raw_from("a", Items(items), None, OPTIONS).train
    assert isinstance(samples, TensorSet)
    assert samples.inputs[2].tolist() == [2, 2, 2, 2, 1, 2, 3]
    assert samples.input_spec.tensors == ((2, 2), (3,))
    assert samples.input_spec.shape == (7,)


def test_a_dataset_may_declare_its_modality() -> None:
    pixels = Items([(np.full((20, 24, 3), i, np.uint8), i) for i in range(3)], modality="image")
    images = raw_from("a", pixels, None, OPTIONS).train
    assert isinstance(images, ImageSet)
    assert images.inputs.shape == (3, 3, 16, 16)
    series = raw_from("a", Items([(torch.randn(2, 9), i) for i in range(3)], modality="series"), None, OPTIONS).train
    assert isinstance(series, SeriesSet)
    ids = Items([(torch.tensor([4, 2, 0]), i) for i in range(2)], modality="text", vocabulary=5)
    text = raw_from("a", ids, None, OPTIONS).train
    assert isinstance(text, TextSet)
    assert text.input_spec.vocabulary == 5
    undeclared = raw_from("a", Items([(np.zeros((20, 24, 3), np.uint8), i) for i in range(3)]), None, OPTIONS).train
    assert undeclared.input_spec.shape == (20, 24, 3)
    assert undeclared.modality == "tensor"


def test_public_sets_have_the_modality_of_the_clients() -> None:
    like = raw_from("a", Items([(torch.randn(2, 9), i) for i in range(3)], modality="series"), None, OPTIONS).train
    public = public_from("public", Items([torch.zeros(2, 9), torch.ones(2, 9)]), like, OPTIONS)
    assert isinstance(public, SeriesSet)
    assert public.transform is None
    assert public.labels.tolist() == [-1, -1]
    labelled = public_from("public", TensorDataset(torch.zeros(4, 2), torch.zeros(4)), None, OPTIONS)
    assert len(labelled) == 4


def test_noise_is_relative_to_a_sample() -> None:
    samples = TensorSet(torch.randn(50, 400), torch.zeros(50, dtype=torch.int64))
    scaled = samples.inputs * torch.logspace(-3, 3, 50)[:, None]
    noise = samples.augment(scaled, "strong", torch.Generator().manual_seed(0)) - scaled
    assert torch.allclose(noise.std(dim=1) / scaled.std(dim=1), torch.tensor(0.2), rtol=0.2)
    with pytest.raises(UsageError, match="choose one of none, weak, noise, strong"):
        samples.augment(scaled, "affine", torch.Generator())


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([])


GOOD = (torch.zeros(2), 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Stream(), "Stream is not a map-style Dataset"),
        (7, "int is not a map-style Dataset"),
        (Items([]), "its Dataset is empty"),
        (Items([GOOD, torch.zeros(2, 2, 2)]), r"item 1 is a Tensor; wanted \(tensor, label\)"),
        (Items([GOOD, (torch.zeros(3), 0)]), r"item 1 has the shape \[\(3,\)\], item 0 has \[\(2,\)\]"),
        (Items([GOOD, (torch.tensor([1.0, float("nan")]), 0)]), "item 1 has NaN or infinite values"),
        (Items([(torch.zeros(2), 0.5)]), "item 0 has the label 0.5; wanted a whole number or a name"),
        (Items([(torch.zeros(2), torch.tensor([0, 1]))]), r"item 0 has the label \[0, 1\]"),
        (Items([({"a": 1}, 0)]), "item 0 has a dict where a tensor is wanted"),
        (Items([(torch.zeros(2), 3)], classes=("p", "q")), "label 3 but 2 classes"),
        (Items([GOOD], modality="sound"), "modality = 'sound' of its Dataset is not one of tensor, image"),
        (Items([GOOD], modality="series"), "series: float32 N×channels×time wanted"),
        (Items([(torch.tensor([7]), 0)], modality="text", vocabulary=5), "from 7 to 7 and vocabulary = 5"),
        (Items([((torch.zeros(2), torch.zeros(2)), 0)], modality="image"), "several tensors cannot be image samples"),
    ],
)
def test_what_cannot_be_used_is_one_line(data: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        raw_from("a", data, None, OPTIONS)
    assert "\n" not in str(caught.value)
