"""New samples for a trained model whose training samples came from a user's Dataset: the array of an `.npz` file."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir.data.npz import public_key, read_arrays
from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, check_shape, numbered
from fedchoir.data.torch_datasets.tensor_set import AsGiven
from fedchoir.utils.errors import UsageError


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    def read(path: Path) -> tuple[list[str], Tensor]:
        if path.suffix != ".npz":
            raise UsageError(f"{path}: new samples for this model should be the array x of an .npz file")
        arrays = read_arrays(path)
        inputs = check_shape(path, torch.from_numpy(arrays[public_key(path, arrays)]).float(), content)
        return numbered(inputs), inputs

    return Preprocessing(read, AsGiven())
