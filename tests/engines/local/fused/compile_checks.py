"""What tests of compiling ahead share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedchoir.engines.local.fused import layers
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

INPUTS, CPU = InputSpec.image(32), torch.device("cpu")


def model(name: str = "resnet10@16") -> nn.Module:
    net = build(name, 4, INPUTS).to(memory_format=torch.channels_last)
    layers.use_fused_layers(net)
    return net


def compiled(cache: Path) -> int:
    return len(list(cache.glob("*/*.cubin")))
