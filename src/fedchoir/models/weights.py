"""Start a model from trained weights in a file: safetensors, or a PyTorch checkpoint that holds tensors alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedchoir.models.base import Model
from fedchoir.models.routes import one_line
from fedchoir.utils.errors import UsageError

State = dict[str, Tensor]

_NESTED = ("state_dict", "model_state_dict", "model", "net", "weights")  # where checkpoints have the weights
_WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")  # prefixes of DataParallel, torch.compile and Lightning
_CHECKPOINT = (b"PK", b"\x80")  # how a PyTorch checkpoint begins: as a zip file, before PyTorch 1.6 as a pickle
_SHOWN = 3  # names in an error


def read_weights(path: Path) -> State:
    """The named tensors of a file. Nothing in it is executed."""
    if not path.is_file():
        raise UsageError(f"weights: there is no file {path}")
    with path.open("rb") as file:
        start = file.read(10)
    try:
        if path.suffix == ".safetensors" or start[8:] == b'{"':
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file makes of its reader
        refused = type(error).__name__ == "UnpicklingError"
        if refused and not start.startswith(_CHECKPOINT):
            raise UsageError(
                f"weights: {path} is no safetensors file or PyTorch checkpoint: it begins with {start[:4]!r}"
            ) from None
        if refused:
            raise UsageError(
                f"weights: {path} is a pickle with Python objects and is not opened; save the weights alone: "
                "torch.save(model.state_dict(), FILE)"
            ) from None
        raise UsageError(f"weights: {path} is no safetensors file or PyTorch checkpoint: {one_line(error)}") from None
    return _tensors(content, path)


def _tensors(content: Any, path: Path) -> State:
    """The state dict in a checkpoint, which may hold optimisers and counters, too."""
    for name in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            return _tensors(content[name], path)
    state = {str(key): value for key, value in content.items()} if isinstance(content, Mapping) else {}
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(
            f"weights: {path} has no state dict: it should be a dictionary of tensors, or have one under "
            f"{', '.join(_NESTED[:3])}"
        )
    return state


def load_weights(model: Model, path: Path) -> list[str]:
    """Load a file into a model and return notes. A head of another size keeps its new weights."""
    own = model.state_dict()
    state = _named_as(model, read_weights(path))
    head = {id(p) for module in model.head_modules() for p in module.parameters()}
    head_names = {name for name, p in model.named_parameters() if id(p) in head}
    bare = model.bare_names()

    other_shape = [name for name, t in state.items() if name in own and t.shape != own[name].shape]
    left_out = [n for n in own if n not in state and n not in head_names and not n.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    problems = []
    if wrong := [name for name in other_shape if name not in head_names]:
        shapes = [f"{bare[n]} is {_shape(state[n])} in the file and {_shape(own[n])} in the model" for n in wrong]
        problems.append(_some(shapes, "other shapes"))
    if left_out:
        problems.append(_some([bare[name] for name in left_out], "missing"))
    if unexpected:
        problems.append(_some(unexpected, "unknown to the model"))
    if problems:
        raise UsageError(f"weights: {path} does not fit model '{model.name}': {'; '.join(problems)}")

    fitting = {name: t for name, t in state.items() if name not in other_shape}
    model.load_state_dict(fitting, strict=False)
    if new := sorted(bare[name] for name in head_names if name not in fitting):
        kind = "another size" if other_shape else "no weights"
        return [f"model {model.name}: {path.name} has {kind} for the head ({', '.join(new)}), which starts untrained"]
    return []


def _named_as(model: Model, state: State) -> State:
    """The tensors of a file under the model's names. The file may use those of the bare module, or have a prefix."""
    own = {bare: name for name, bare in model.bare_names().items()}
    variants = [state]
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in state):
            variants.append({name.removeprefix(prefix): t for name, t in state.items()})
    renamed = [{own.get(name, name): t for name, t in variant.items()} for variant in variants]
    return max(renamed, key=lambda found: len(found.keys() & set(own.values())))


def _shape(t: Tensor) -> str:
    return "×".join(map(str, t.shape)) or "a number"


def _some(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{more})"
