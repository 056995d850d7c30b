"""Models of the user's own code: ``FILE.py:FACTORY``, ``package.module:FACTORY``, or an object.

The factory is code that the user chose, and it is executed. A name that arrives from another site is therefore never
built here: messages have `ModelSpec.public_name`.
"""

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from fedchoir.models import objects
from fedchoir.models.adapter import AdaptedModel
from fedchoir.models.routes import one_line
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import load_factory
from fedchoir.utils.input_spec import InputSpec


def build_own(spec: ModelSpec, num_classes: int, inputs: InputSpec) -> AdaptedModel:
    """Build a module of the user's and find its features."""
    if spec.kind == "object":
        net = objects.get(spec.source)
    else:
        with torch.random.fork_rng(devices=[]):  # the file is executed once, and may draw numbers at its top level
            factory = load_factory(spec.source, f"model '{spec.source}'")
        net = _made(factory, spec, num_classes, inputs)
    return AdaptedModel(spec, net, num_classes, inputs)


def _made(factory: Callable[..., Any], spec: ModelSpec, num_classes: int, inputs: InputSpec) -> nn.Module:
    """What the factory makes. It gets those of ``num_classes``, ``input_shape`` and ``inputs`` that it takes."""
    if isinstance(factory, nn.Module):
        return deepcopy(factory)
    bare = inspect.isclass(factory) and factory.__init__ is nn.Module.__init__  # a class without a constructor
    takes = {} if bare else inspect.signature(factory).parameters
    offered = {"num_classes": num_classes, "input_shape": inputs.tensors or inputs.shape, "inputs": inputs}
    given = {name: value for name, value in offered.items() if name in takes}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        given["num_classes"] = num_classes  # torchvision's factories pass it on
    try:
        net = factory(**given)
    except Exception as error:  # code of the user may raise anything
        raise UsageError(f"model '{spec.source}': the factory failed: {one_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"model '{spec.source}': the factory returned {type(net).__name__}, not an nn.Module")
    return net
