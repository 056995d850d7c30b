"""Build a model as a run would, and measure it: ``fedchoir list models --check``."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.models.base import Model, laid_out
from fedchoir.models.registry import build
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded

_STEPS = 3
_MODALITIES = {1: "table", 2: "series", 3: "image"}  # by the number of dimensions of a sample


@dataclass(frozen=True)
class ModelCheck:
    """What a model has and needs.

    Attributes:
        parameters: all of them; ``trained`` are those that a run changes.
        map_shape: channels, height and width of the feature map; empty where there is none.
        weight_bytes: of weights and buffers.
        activation_bytes: per sample, stored for the backward pass.
        step_seconds: forward and backward pass of a batch of ``batch``, the median of three.
    """

    name: str
    inputs: InputSpec
    parameters: int
    trained: int
    feature_dim: int
    map_shape: tuple[int, ...]
    weight_bytes: int
    activation_bytes: float
    batch: int
    step_seconds: float
    notes: tuple[str, ...]


def check_model(
    name: str, num_classes: int, inputs: InputSpec, *, batch: int = 32, device: torch.device | None = None
) -> ModelCheck:
    """Build a model and run a few training steps on random samples."""
    device = device or torch.device("cpu")
    with seeded(0, "check"):
        model = laid_out(build(name, num_classes, inputs).to(device))
        x = _samples(inputs, batch).to(device)
        labels = torch.arange(batch, device=device) % num_classes
        map_shape = tuple(model.eval().feature_map(x[:1]).shape[1:]) if model.map_dim else ()
        stored = _stored_bytes(model.train(), x) / batch
        seconds = [_step(model, x, labels) for _ in range(1 + _STEPS)][1:]
    tensors = [*model.parameters(), *model.buffers()]
    return ModelCheck(
        name=name,
        inputs=inputs,
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        feature_dim=model.feature_dim,
        map_shape=map_shape,
        weight_bytes=sum(t.nbytes for t in tensors),
        activation_bytes=stored,
        batch=batch,
        step_seconds=statistics.median(seconds),
        notes=model.notes,
    )


def parse_inputs(text: str) -> InputSpec:
    """``3x32x32`` are images, ``13`` a table, ``9x128`` series, ``text:50x20000`` texts of 50 of 20,000 tokens.

    >>> parse_inputs("3x32x32").modality, parse_inputs("9x128").modality, parse_inputs("13").shape
    ('image', 'series', (13,))
    >>> parse_inputs("text:50x20000")
    InputSpec(modality='text', shape=(50,), vocabulary=20000, tensors=())
    """
    prefix, colon, sizes = text.rpartition(":")
    if "+" in sizes:
        shapes = [parse_inputs(f"tensor:{part}").shape for part in sizes.split("+")] if prefix == "tensor" else []
        if not shapes:
            raise _not_inputs(text)
        return InputSpec("tensor", (sum(map(math.prod, shapes)),), tensors=tuple(shapes))
    try:
        shape = tuple(int(size) for size in sizes.lower().replace("×", "x").split("x"))
    except ValueError:
        shape = ()
    modality = prefix if colon else _MODALITIES.get(len(shape), "tensor")
    if not shape or min(shape) < 1 or (modality == "text" and len(shape) != 2) or modality not in _KNOWN:
        raise _not_inputs(text)
    return InputSpec("text", shape[:1], shape[1]) if modality == "text" else InputSpec(modality, shape)


def _not_inputs(text: str) -> UsageError:
    return UsageError(
        f"--input {text!r} is not possible: it should be 3x32x32 (images), 13 (a table), 9x128 (series), "
        "text:LENGTHxTOKENS, tensor:SIZES or tensor:SIZES+SIZES"
    )


def inputs_text(inputs: InputSpec) -> str:
    """What `parse_inputs` reads.

    >>> inputs_text(InputSpec("text", (50,), vocabulary=20000)), inputs_text(InputSpec("table", (13,)))
    ('text:50x20000', '13')
    >>> inputs_text(InputSpec("tensor", (259,), tensors=((1, 16, 16), (3,))))
    'tensor:1x16x16+3'
    """
    if inputs.modality == "text":
        return f"text:{inputs.shape[0]}x{inputs.vocabulary}"
    sizes = "+".join("x".join(map(str, shape)) for shape in inputs.tensors or (inputs.shape,))
    return sizes if _MODALITIES.get(len(inputs.shape)) == inputs.modality else f"{inputs.modality}:{sizes}"


_KNOWN = (*_MODALITIES.values(), "text", "tensor")


def _samples(inputs: InputSpec, batch: int) -> Tensor:
    x = inputs.example(batch)
    return torch.randint_like(x, 1, max(inputs.vocabulary, 2)) if inputs.modality == "text" else torch.randn_like(x)


def _stored_bytes(model: Model, x: Tensor) -> int:
    """Bytes that the backward pass of a batch needs, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    stored: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in weights:
            stored[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(x)
    total = sum(t.untyped_storage().nbytes() for t in stored.values())
    del output  # until here: the address of a freed tensor may be reused
    return total


def _step(model: Model, x: Tensor, labels: Tensor) -> float:
    start = time.perf_counter()
    cross_entropy(model(x), labels).backward()
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start
