"""From raw samples to a model's inputs, as stored beside a trained model: what a site needs to use its model later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir.data.modalities import READERS
from fedchoir.data.options import DataOptions
from fedchoir.data.samples import Samples
from fedchoir.utils.errors import UsageError


@dataclass(frozen=True)
class Preprocessing:
    """How new samples are read and transformed.

    Attributes:
        read: a folder or file of unlabeled samples → their names and stored inputs, N×….
        transform: stored inputs → inputs of the model. Made of torch operations, so that it can be exported.
    """

    read: Callable[[Path], tuple[list[str], Tensor]]
    transform: Callable[[Tensor], Tensor]


def describe_preprocessing(samples: Samples) -> dict[str, Any]:
    """What `load_preprocessing` needs, as JSON: the form of the client's stored samples and its transform."""
    stored = {"shape": list(samples.inputs.shape[1:]), "dtype": str(samples.inputs.dtype).removeprefix("torch.")}
    transform = samples.transform
    return {
        "modality": samples.modality,
        "stored": stored,
        "transform": None if transform is None else transform.to_json(),
    }


def load_preprocessing(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    """The preprocessing that `describe_preprocessing` described; ``options`` are those of the run.

    The package of a modality defines ``load(content, options)`` in its module ``preprocessing``.
    """
    try:
        package = READERS[content["modality"]].rpartition(".")[0]
        loaded: Preprocessing = import_module(f"{package}.preprocessing").load(content, options)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the preprocessing of this model cannot be read: {error!r}") from None
    return loaded


def stored_zeros(content: dict[str, Any], count: int) -> Tensor:
    """Stored samples of zeros, for tracing a model."""
    return torch.zeros(count, *content["stored"]["shape"], dtype=getattr(torch, content["stored"]["dtype"]))


def check_shape(path: Path, inputs: Tensor, content: dict[str, Any]) -> Tensor:
    """The inputs, if they have the shape of the client's training samples."""
    found, wanted = list(inputs.shape[1:]), content["stored"]["shape"]
    if found != wanted:
        shapes = ["×".join(map(str, shape)) for shape in (found, wanted)]
        raise UsageError(f"{path}: samples of {shapes[0]}, but the model was trained on samples of {shapes[1]}")
    return inputs


def numbered(inputs: Tensor) -> list[str]:
    """Names of samples that have none: their positions, from 0."""
    return [str(position) for position in range(len(inputs))]
