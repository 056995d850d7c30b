"""A correction of gradients as a term of the loss: SCAFFOLD and FedDyn."""

from collections.abc import Iterable

import torch
from torch import Tensor


def gradient_correction(params: Iterable[Tensor], correction: Iterable[Tensor]) -> Tensor:
    """A term whose gradient is a given vector: it is added to the gradient of every optimiser step.

    SCAFFOLD (Karimireddy et al., ICML 2020) steps along g − c_i + c, which is the gradient of the loss plus this term
    with the correction c − c_i; FedDyn (Acar et al., ICLR 2021) subtracts its last local gradient in the same way:

        L = Σ ⟨w, c⟩

    Args:
        params: the local parameters w.
        correction: c, in the same order and shapes; detached.

    >>> gradient_correction([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, -1.0])]).item()
    1.0
    """
    pairs = list(zip(params, correction, strict=True))
    if not pairs:
        raise ValueError("no parameters to correct; pass the model's trainable parameters")
    for w, c in pairs:
        if w.shape != c.shape:
            raise ValueError(f"a correction has shape {tuple(c.shape)}, and its parameters have {tuple(w.shape)}")
    flat_w, flat_c = (torch.cat([tensor.flatten() for tensor in group]) for group in zip(*pairs, strict=True))
    return (flat_w * flat_c.detach()).sum()
