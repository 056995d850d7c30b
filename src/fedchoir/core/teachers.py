"""Frozen models: teachers, global and previous models. Their weights are shared, never copied or changed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedchoir.models import Model

Output = Literal["logits", "features"] | Callable[[Model, Tensor], Tensor]
"""What a teacher computes: logits, features, or any function of the model and a batch."""


@dataclass(frozen=True)
class Teacher:
    """The outputs of a frozen model as targets for `Client.train`.

    In eval mode and without augmentation they are computed once for all samples, otherwise batch by batch.
    """

    weights: Mapping[str, Tensor]
    output: Output = "logits"
    batchnorm: Literal["eval", "train"] = "eval"


class TeacherOutput:
    """A frozen model's output on a batch, in float32."""

    def __init__(self, model: Model, output: Output, autocast: Callable[[], AbstractContextManager[object]]) -> None:
        self._model, self._output, self._autocast = model, output, autocast

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        with self._autocast():
            if callable(self._output):
                return self._output(self._model, inputs).float()
            h, z = self._model.features_and_logits(inputs)
        return (z if self._output == "logits" else h).float()


def copy_structure(model: Model) -> Model:
    """A copy of the module tree that shares all tensors with the original; assign others before use."""
    memo = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return deepcopy(model, memo)


def freeze_batchnorm_stats(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Stop BatchNorm from updating its running statistics in train mode; returns the layers that changed."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for m in norms:
        m.track_running_stats = False
    return norms


@contextmanager
def frozen_batchnorm_stats(model: nn.Module) -> Iterator[None]:
    """BatchNorm does not update its running statistics inside the block."""
    norms = freeze_batchnorm_stats(model)
    try:
        yield
    finally:
        for m in norms:
            m.track_running_stats = True
