"""Models that were given as Python objects: ``Experiment(models=[net_a, net_b])``.

An object is named by its content, so that a script that makes the same object again can resume its run. It exists in
this process only.
"""

import hashlib
from copy import deepcopy

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from fedchoir.models.spec import OBJECT
from fedchoir.utils.errors import UsageError

_modules: dict[str, nn.Module] = {}


def register(module: nn.Module) -> str:
    """Keep a copy of a module and return the name that `get` finds it by."""
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise UsageError(f"{type(module).__name__} has lazy layers: call it once with a batch, then pass it as a model")
    name = f"{OBJECT}{type(module).__name__}-{_digest(module)}"
    if name not in _modules:
        _modules[name] = deepcopy(module)
    return name


def get(name: str) -> nn.Module:
    """A copy of the module that was registered under a name."""
    if name not in _modules:
        raise UsageError(
            f"model '{name}' was a Python object of the process that started the run and cannot be rebuilt here: "
            "resume from Python with the same object, or write a factory and give FILE.py:FACTORY (several devices and "
            "the command line need one)"
        )
    return deepcopy(_modules[name])


def _digest(module: nn.Module) -> str:
    """Of the structure, the code of the forward passes, and the names and values of all weights and buffers."""
    digest = hashlib.sha256(repr(module).encode())
    for kind in dict.fromkeys(map(type, module.modules())):
        digest.update(getattr(getattr(getattr(kind, "forward", None), "__code__", None), "co_code", b""))
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:8]
