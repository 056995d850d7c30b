"""Models without BatchNorm and dropout: training and eval mode give the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.federation_harness import FederationHarness

PLAIN = ("simple_cnn@4", "simple_cnn@6", "mlp")
Make = Callable[..., FederationHarness]


def after(make: Make, method: str = "fccl+", rounds: int = 2, **settings: Any) -> list[dict[str, torch.Tensor]]:
    """The clients' weights after some rounds."""
    s = make(method, PLAIN, **settings)
    s.run_rounds(rounds)
    return s.weights()
