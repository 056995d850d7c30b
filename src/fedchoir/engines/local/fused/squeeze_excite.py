"""Squeeze-and-excitation: two small linear layers on the mean of each channel, one kernel forward and two backward.

As separate layers they would be a dozen kernels that take longer to launch than to run.
"""

# mypy: disable-error-code="import-untyped"

import torch
import triton
from torch import Tensor

from fedchoir.engines.local.fused.kernels import squeeze_excite as kernels
from fedchoir.engines.local.fused.kernels.common import LANES

FORWARD_TILE = {"BN": 16, "BK": 128, "BC": 128, "num_warps": 4}  # images, input channels per loop step, output channels
WEIGHT_TILE = {"BN": 128, "BC": 32, "num_warps": 4}


def _options(squeezed: int, bf16: bool) -> dict[str, object]:
    exact = torch.get_float32_matmul_precision() == "highest"
    width = max(16, triton.next_power_of_2(squeezed))
    return {"BF16": bf16, "PRECISION": "ieee" if exact else "tf32", "BR": width}


def _programs(n: int, c: int) -> tuple[int, int]:
    return triton.cdiv(n, FORWARD_TILE["BN"]), triton.cdiv(c, FORWARD_TILE["BC"])


def gate(mean: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bf16: bool) -> tuple[Tensor, Tensor]:
    """N×C channel means to N×C gates, and the N×R values before the activation. ``bf16``: multiply in bfloat16."""
    (n, c), r = mean.shape, len(w1)
    hidden, out = mean.new_empty((n, r)), torch.empty_like(mean)
    kernels.gate[_programs(n, c)](
        mean, w1, b1, w2, b2, hidden, out, n, c // LANES, r, **_options(r, bf16), **FORWARD_TILE
    )
    return out, hidden


def pool_gradient(
    dz: Tensor, hidden: Tensor, positions: int, w1: Tensor, w2: Tensor, bf16: bool
) -> tuple[Tensor, Tensor]:
    """N×C gradients of the positions under the mean, and the N×R of the hidden values, for `weight_gradients`."""
    (n, c), r = dz.shape, len(w1)
    dhidden, dpool = torch.empty_like(hidden), torch.empty_like(dz)
    kernels.pool_gradient[_programs(n, c)](
        dz, hidden, w1, w2, dhidden, dpool, n, c // LANES, r, positions, **_options(r, bf16), **FORWARD_TILE
    )
    return dpool, dhidden


def weight_gradients(
    dz: Tensor, mean: Tensor, hidden: Tensor, dhidden: Tensor, w1: Tensor, w2: Tensor, bf16: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first layer's weight and bias, and of the second's."""
    (n, c), r = mean.shape, len(w1)
    dw1, dw2 = mean.new_empty(w1.shape), mean.new_empty(w2.shape)
    db1, db2 = mean.new_empty(r), mean.new_empty(c)
    kernels.weight_gradients[triton.cdiv(c, WEIGHT_TILE["BC"]), 2](
        dz, hidden, dhidden, mean, dw1, db1, dw2, db2, n, c // LANES, r, **_options(r, bf16), **WEIGHT_TILE
    )
    return dw1, db1, dw2, db2
