"""Device functions that all kernels share: activations, and reductions over positions.

Tensors are channels-last, so each is a matrix of positions (image, row, column) and channels. A program handles a tile
of it. Sums over positions are split into partial sums; the program that finishes last adds them in a fixed order, so
that the same input gives the same bits.
"""

# Triton reads the annotations of its kernels, and has no types of its own.
# mypy: disable-error-code="no-untyped-def,import-untyped"

import triton
import triton.language as tl

NONE, RELU, RELU6, SILU = 0, 1, 2, 3  # codes of activations
LANES = 8  # kernels count channels in eights: one load is 16 bytes, eight bf16 values


@triton.jit
def activate(x, ACT: tl.constexpr):
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    elif ACT == 2:
        x = tl.minimum(tl.maximum(x, 0.0), 6.0)
    elif ACT == 3:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def activation_backward(d, x, ACT: tl.constexpr):
    """Gradient at the activation's input ``x``, given the gradient ``d`` at its output."""
    if ACT == 1:
        d = tl.where(x > 0.0, d, 0.0)
    elif ACT == 2:
        d = tl.where((x > 0.0) & (x < 6.0), d, 0.0)
    elif ACT == 3:
        s = tl.sigmoid(x)
        d = d * (s + x * s * (1.0 - s))
    return d


@triton.jit
def load_norm(mean, rstd, weight, bias, c, c_mask):
    """Mean, 1/deviation, weight and bias of a tile's channels."""
    mu, r = tl.load(mean + c, mask=c_mask, other=0.0), tl.load(rstd + c, mask=c_mask, other=0.0)
    w, b = tl.load(weight + c, mask=c_mask, other=0.0), tl.load(bias + c, mask=c_mask, other=0.0)
    return mu, r, w, b


@triton.jit
def store_partials(acc1, acc2, partials, counters, split, splits, c_block, c, c_mask, C):
    """Store the two sums of this program. True in the program that is the last of its channels to do so."""
    tl.store(partials + split * 2 * C + c, acc1, mask=c_mask)
    tl.store(partials + (split * 2 + 1) * C + c, acc2, mask=c_mask)
    tl.debug_barrier()
    return tl.atomic_add(counters + c_block, 1) == splits - 1


@triton.jit
def reduce_partials(partials, counters, splits, c_block, c, c_mask, C, BC: tl.constexpr):
    """Both sums over all programs. Only the last program calls this; it resets the counter for the next kernel."""
    acc1, acc2 = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(0, splits, 64):
        s = start + tl.arange(0, 64)
        mask = (s < splits)[:, None] & c_mask[None, :]
        ptr = partials + s[:, None] * 2 * C + c[None, :]
        acc1 += tl.sum(tl.load(ptr, mask=mask, other=0.0, cache_modifier=".cg"), 0)
        acc2 += tl.sum(tl.load(ptr + C, mask=mask, other=0.0, cache_modifier=".cg"), 0)
    tl.store(counters + c_block, 0)
    return acc1, acc2


@triton.jit
def store_statistics(
    acc1, acc2, pivot, mean, rstd, running_mean, running_var, num_batches, n, eps, momentum, c_block, c, c_mask,
    track_stats,
):  # fmt: skip
    """Store mean and 1/deviation from the sums of (x − pivot) and its square; update the running statistics."""
    delta = acc1 / n
    batch_mean = pivot + delta
    var = tl.maximum(acc2 / n - delta * delta, 0.0)
    tl.store(mean + c, batch_mean, mask=c_mask)
    tl.store(rstd + c, 1.0 / tl.sqrt(var + eps), mask=c_mask)
    if track_stats != 0:
        unbiased = var * (n / tl.maximum(n - 1.0, 1.0))
        old_mean = tl.load(running_mean + c, mask=c_mask, other=0.0)
        old_var = tl.load(running_var + c, mask=c_mask, other=0.0)
        tl.store(running_mean + c, old_mean + momentum * (batch_mean - old_mean), mask=c_mask)
        tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=c_mask)
        if c_block == 0:
            tl.store(num_batches, tl.load(num_batches) + 1)
