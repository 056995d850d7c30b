"""Feature maps of any backbone as B×D×h×w."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedchoir.utils.input_spec import InputSpec


def as_map(y: Tensor, *, prefix: int = 0, channels_last: bool = False) -> Tensor:
    """The output of an image backbone as B×D×h×w.

    Of tokens B×N×D the first ``prefix`` (class token, registers) are dropped; a square number of others becomes a
    square map, any other number their mean at one position.

    >>> import torch
    >>> as_map(torch.zeros(2, 1 + 9, 5), prefix=1).shape
    torch.Size([2, 5, 3, 3])
    >>> as_map(torch.zeros(2, 8, 5)).shape
    torch.Size([2, 5, 1, 1])
    """
    if y.ndim == 4:
        return y.permute(0, 3, 1, 2) if channels_last else y
    if y.ndim == 2:
        return y[:, :, None, None]
    y = y[:, prefix:].transpose(1, 2)
    side = math.isqrt(y.shape[2])
    if side * side != y.shape[2]:
        return y.mean(dim=2)[:, :, None, None]
    return y.reshape(y.shape[0], y.shape[1], side, side)


@dataclass(frozen=True)
class MapLayout:
    """How an activation of three or four dimensions is read as a map.

    Attributes:
        order: ``channels`` first (B×D×T, B×D×h×w), ``positions`` first (B×N×D), or ``image``: B×h×w×D.
        prefix: tokens before those of the positions (class token).
        square: whether positions are those of a square image; else they stand in one row.
    """

    order: Literal["channels", "positions", "image"]
    prefix: int = 0
    square: bool = False

    @classmethod
    def of(cls, y: Tensor, feature_dim: int, inputs: InputSpec) -> "MapLayout":
        """The layout of an activation. Of B×M×N, the channels are those that the features have as many of.

        >>> import torch
        >>> MapLayout.of(torch.zeros(2, 17, 8), 8, InputSpec.image(32))
        MapLayout(order='positions', prefix=1, square=True)
        >>> MapLayout.of(torch.zeros(2, 8, 128), 8, InputSpec("series", (9, 128)))
        MapLayout(order='channels', prefix=0, square=False)
        """
        if y.ndim == 4:
            return cls("channels")
        images = inputs.modality == "image"
        by_feature = y.shape[2] == feature_dim != y.shape[1]
        tokens = by_feature or (y.shape[1] != feature_dim and inputs.modality != "series")
        count = y.shape[1] if tokens else y.shape[2]
        side = math.isqrt(count - 1)
        return cls(
            "positions" if tokens else "channels", prefix=int(images and side * side == count - 1), square=images
        )

    @classmethod
    def of_timm(cls, backbone: nn.Module) -> "MapLayout":
        """The layout of what a timm model's ``forward_features`` gives."""
        channels_last = str(getattr(backbone, "output_fmt", "")).upper().endswith("NHWC")
        prefix = int(getattr(backbone, "num_prefix_tokens", 0))
        return cls("image" if channels_last else "positions", prefix, square=True)

    def __call__(self, y: Tensor) -> Tensor:
        """The activation as B×D×h×w."""
        if y.ndim != 3:
            return as_map(y, channels_last=self.order == "image")
        if self.order == "channels":
            y = y.transpose(1, 2)
        return as_map(y, prefix=self.prefix) if self.square else y.transpose(1, 2).unsqueeze(2)
