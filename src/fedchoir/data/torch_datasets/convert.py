"""Torch Datasets → samples. Every error names the client and the item."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fedchoir.data.domain import Raw
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import as_images
from fedchoir.data.image.resize import Resize
from fedchoir.data.options import DataOptions
from fedchoir.data.own_functions import is_table
from fedchoir.data.samples import Samples, unlabeled
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.text.tokenizers import GivenIds
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.utils.errors import UsageError

MODALITIES = ("tensor", "image", "series", "text")


@dataclass(frozen=True)
class Items:
    """The content of a Dataset, in its order: tensors N×…, and one label per sample (empty for a public set)."""

    tensors: tuple[Tensor, ...]
    labels: list[Any]
    modality: str
    vocabulary: int


def raw_from(name: str, train: Any, test: Any | None, options: DataOptions) -> Raw:
    """The samples of one client from its Datasets. Class names are ``train.classes``, else the labels themselves."""
    items = [
        read_items(where, data) for where, data in ((name, train), (f"test set of {name}", test)) if data is not None
    ]
    labels, classes = _classes(name, [part.labels for part in items], getattr(train, "classes", None))
    sets = [samples_from(name, part, label, options) for part, label in zip(items, labels, strict=True)]
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes)


def public_from(name: str, data: Any, like: Samples | None, options: DataOptions) -> Samples:
    """Unlabeled samples, of the modality of a client's, from a Dataset of tensors or of (tensor, label) pairs."""
    items = read_items(name, data, labelled=False)
    if like is not None and not hasattr(data, "modality"):
        items = replace(items, modality=like.modality, vocabulary=items.vocabulary or like.input_spec.vocabulary)
    return samples_from(name, items, unlabeled(len(items.tensors[0])), options).for_every_client()


def read_items(name: str, data: Any, *, labelled: bool = True) -> Items:
    """Read every item once, in the order of its index."""
    if is_table(data):
        raise UsageError(f"{name}: a pandas DataFrame is given where a Dataset is wanted, as for the other samples")
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise UsageError(f"{name}: {type(data).__name__} is not a map-style Dataset, with __len__ and __getitem__")
    if not len(data):
        raise UsageError(f"{name}: its Dataset is empty")
    samples, labels = [], []
    for index in range(len(data)):
        item = data[index]
        pair = isinstance(item, Sequence) and len(item) == 2
        if labelled and not pair:
            raise UsageError(f"{name}: item {index} is a {type(item).__name__}; wanted (tensor, label)")
        sample = item[0] if pair else item
        several = isinstance(sample, Sequence) and any(isinstance(part, Tensor | np.ndarray) for part in sample)
        samples.append([_tensor(name, index, part) for part in (sample if several else [sample])])
        labels += [_label(name, index, item[1])] if labelled else []
    modality = getattr(data, "modality", "tensor")
    if modality not in MODALITIES:
        raise UsageError(f"{name}: modality = {modality!r} of its Dataset is not one of {', '.join(MODALITIES)}")
    return Items(_stacked(name, samples), labels, modality, int(getattr(data, "vocabulary", 0)))


def samples_from(name: str, items: Items, labels: Tensor, options: DataOptions) -> Samples:
    """Samples of the modality that the Dataset declares."""
    if len(items.tensors) > 1 and items.modality != "tensor":
        raise UsageError(f"{name}: samples of several tensors cannot be {items.modality} samples")
    first = items.tensors[0]
    try:
        if items.modality == "image":
            return ImageSet(as_images(first.numpy(), Resize.to(options.image_size, options.aspect)), labels)
        if items.modality == "series":
            return SeriesSet(first.float(), labels)
        if items.modality == "text":
            return TextSet(first, labels, _given_ids(name, first, items.vocabulary))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if len(items.tensors) == 1:
        return TensorSet(first.float() if first.ndim > 1 else first.float()[:, None], labels)
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in items.tensors)
    return TensorSet(torch.cat([tensor.float().flatten(1) for tensor in items.tensors], dim=1), labels, shapes)


def _given_ids(name: str, ids: Tensor, vocabulary: int) -> GivenIds:
    """Check the token ids of a Dataset."""
    if vocabulary < 2 or ids.dtype != torch.int64 or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise UsageError(
            f"{name}: a Dataset of text has token ids (int64) from 0, padding, to below its attribute 'vocabulary'; "
            f"found {ids.dtype} from {ids.min():g} to {ids.max():g} and vocabulary = {vocabulary}"
        )
    return GivenIds(vocabulary)


def _tensor(name: str, index: int, value: Any) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError):
        raise UsageError(f"{name}: item {index} has a {type(value).__name__} where a tensor is wanted") from None
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise UsageError(f"{name}: item {index} has NaN or infinite values")
    return tensor.detach().cpu()


def _label(name: str, index: int, value: Any) -> int | str:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = np.asarray(value).tolist()
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{name}: item {index} has the label {value!r}; wanted a whole number or a name")
    return value


def _stacked(name: str, samples: list[list[Tensor]]) -> tuple[Tensor, ...]:
    shapes = [[tuple(part.shape) for part in sample] for sample in samples]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise UsageError(
            f"{name}: item {other} has the shape {shapes[other]}, item 0 has {shapes[0]}; all must be alike"
        )
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))


def _classes(name: str, splits: list[list[Any]], names: Any) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as positions in the class names."""
    values = {label for labels in splits for label in labels}
    if names is not None and all(isinstance(label, int) for label in values):
        classes = tuple(map(str, names))
        if bad := sorted(label for label in values if not 0 <= label < len(classes)):
            raise UsageError(f"{name}: label {bad[0]} but {len(classes)} classes")
        position = {label: label for label in values}
    else:
        ordered = sorted(values, key=lambda label: (isinstance(label, str), label))
        classes = tuple(map(str, ordered))
        position = {label: i for i, label in enumerate(ordered)}
    return [torch.tensor([position[label] for label in labels], dtype=torch.int64) for labels in splits], classes
