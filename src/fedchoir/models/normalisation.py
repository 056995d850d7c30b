"""Normalisation layers of any model: those of PyTorch and what is derived from them, as timm's are."""

from collections.abc import Iterator

from torch import nn

NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""BatchNorm and InstanceNorm (any dimensions), GroupNorm, LayerNorm, RMSNorm."""


def normalisation_names(model: nn.Module) -> Iterator[str]:
    """The names of all weights and buffers of normalisation layers, as in the state dict.

    >>> list(normalisation_names(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))))
    ['1.weight', '1.bias']
    """
    for prefix, module in model.named_modules():
        if isinstance(module, NORMALISATION):
            yield from (f"{prefix}.{name}" if prefix else name for name in module.state_dict())
