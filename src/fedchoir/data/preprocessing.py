"""From raw samples to a model's inputs, as stored beside a trained model: what a site needs to use its model later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
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
        convert: samples in memory → stored inputs; None where they are arrays only.
        memory: the kind of samples that ``convert`` takes, in words.
    """

    read: Callable[[Path], tuple[list[str], Tensor]]
    transform: Callable[[Tensor], Tensor]
    convert: Callable[[Any], Tensor] | None = None
    memory: str = ""

    def samples(self, data: Any, content: dict[str, Any]) -> tuple[list[str], Tensor]:
        """New samples from a path, from memory, or as an array of the form that ``content`` describes."""
        if isinstance(data, str | Path):
            path = Path(data).expanduser()
            if not path.exists():
                raise UsageError(f"new samples: there is no folder or file {path}")
            names, inputs = self.read(path)
        else:
            if isinstance(data, Tensor | np.ndarray):
                inputs = _as_stored(data, content)
            elif self.convert is not None:
                inputs = self.convert(data)
            else:
                raise refused(data, self.memory)
            names = numbered(inputs)
        if not names:
            raise UsageError(
                f"new samples: {data if isinstance(data, str | Path) else 'none are'} given; wanted one or more"
            )
        return names, inputs


def refused(data: Any, memory: str = "") -> UsageError:
    """Samples of a kind that a model does not take."""
    kinds = ["a folder or file", *([memory] if memory else []), "an array"]
    return UsageError(f"new samples: a {type(data).__name__} given; wanted {', '.join(kinds[:-1])} or {kinds[-1]}")


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


def _as_stored(data: Tensor | np.ndarray, content: dict[str, Any]) -> Tensor:
    """An array as stored inputs: whole numbers stay whole numbers."""
    wanted: torch.dtype = getattr(torch, content["stored"]["dtype"])
    try:
        inputs = torch.as_tensor(data).detach().cpu()
    except TypeError:
        raise UsageError(f"new samples: an array of {data.dtype} given; wanted {content['stored']['dtype']}") from None
    if inputs.ndim == 0:
        raise UsageError("new samples: one number given; wanted an array N×…")
    whole = not (inputs.is_floating_point() or inputs.is_complex())
    in_range = (
        not whole or wanted != torch.uint8 or not inputs.numel() or 0 <= int(inputs.min()) <= int(inputs.max()) <= 255
    )
    if inputs.is_complex() or not (wanted.is_floating_point or (whole and in_range)):
        raise UsageError(f"new samples: an array of {inputs.dtype} given; wanted {content['stored']['dtype']}")
    return check_shape("new samples", inputs.to(wanted), content)


def check_shape(path: Path | str, inputs: Tensor, content: dict[str, Any]) -> Tensor:
    """The inputs, if they have the shape of the client's training samples."""
    found, wanted = list(inputs.shape[1:]), content["stored"]["shape"]
    if found != wanted:
        shapes = ["×".join(map(str, shape)) for shape in (found, wanted)]
        raise UsageError(f"{path}: samples of {shapes[0]}, but the model was trained on samples of {shapes[1]}")
    return inputs


def numbered(inputs: Tensor) -> list[str]:
    """Names of samples that have none: their positions, from 0."""
    return [str(position) for position in range(len(inputs))]
