"""Models that only answer: teachers, global and previous ones. Their weights are shared, never copied, never moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedchoir.models import VisionModel

Output = Literal["logits", "features"] | Callable[[VisionModel, Tensor], Tensor]
"""What is wanted of a frozen model: its logits, its features, or whatever a function makes of it and a batch."""


@dataclass(frozen=True)
class Teacher:
    """What a frozen model says about each private image, as a target for `Client.fit`.

    In eval mode, and without augmentation, it is computed once for all images; otherwise batch by batch.
    """

    weights: Mapping[str, Tensor]
    output: Output = "logits"
    batchnorm: Literal["eval", "train"] = "eval"


class TeacherOutput:
    """A frozen model that answers batch by batch, in float32."""

    def __init__(
        self, model: VisionModel, output: Output, autocast: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._model, self._output, self._autocast = model, output, autocast

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        with self._autocast():
            if callable(self._output):
                return self._output(self._model, images).float()
            h, z = self._model.features_and_logits(images)
        return (z if self._output == "logits" else h).float()


def deepcopy_structure(model: VisionModel) -> VisionModel:
    """A copy of the module tree whose tensors are placeholders (to be assigned), so that no weights are copied."""
    memo = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return deepcopy(model, memo)


def freeze_batchnorm_stats(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """BatchNorm normalises by the batch, and leaves its running statistics alone; the layers that changed."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for m in norms:
        m.track_running_stats = False
    return norms


@contextmanager
def frozen_batchnorm_stats(model: nn.Module) -> Iterator[None]:
    """Running statistics are held for a while."""
    norms = freeze_batchnorm_stats(model)
    try:
        yield
    finally:
        for m in norms:
            m.track_running_stats = True
