"""Where the features and logits of a module are: by its own methods, or at one of its layers.

A route is found once, on a few random samples, and checked: the head applied to the features gives the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from fedchoir.models.layer_calls import LayerCall, Side, calls_after, captured
from fedchoir.utils.errors import UsageError

Ending = Literal["none", "softmax", "log_softmax"]
_ENDINGS: dict[Ending, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "softmax": lambda z: z.softmax(dim=1),
    "log_softmax": lambda z: z.log_softmax(dim=1),
}
_ENDING_LAYERS = (nn.Softmax, nn.LogSoftmax)
_REDUCTIONS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {  # by the number of dimensions, 0: any
    "flatten": (0, lambda y: y.flatten(1)),
    "mean over the map": (4, lambda y: y.mean(dim=(2, 3))),
    "mean over positions": (3, lambda y: y.mean(dim=1)),
    "mean over time": (3, lambda y: y.mean(dim=2)),
    "first position": (3, lambda y: y[:, 0]),
    "last position": (3, lambda y: y[:, -1]),
}


class Arguments(NamedTuple):
    """What a module is called with."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Any]


class Pass(NamedTuple):
    """One forward pass: features B×d, logits B×C and, where the route has it, the last feature map as it is."""

    features: Tensor
    logits: Tensor
    raw_map: Tensor | None = None


class Route(Protocol):
    """How to get features and logits in one pass."""

    def __call__(self, net: nn.Module, arguments: Arguments) -> Pass: ...

    def classify(self, net: nn.Module, h: Tensor) -> Tensor:
        """Logits of features."""


@dataclass(frozen=True)
class TimmRoute:
    """timm's ``forward_features`` and ``forward_head``."""

    def __call__(self, net: Any, arguments: Arguments) -> Pass:
        y = net.forward_features(*arguments.args)
        h = net.forward_head(y, pre_logits=True)
        return Pass(h, self.classify(net, h), y)

    def classify(self, net: Any, h: Tensor) -> Tensor:
        return cast(Tensor, net.get_classifier()(h))


@dataclass(frozen=True)
class MethodRoute:
    """The module's own ``features`` and ``classify``."""

    def __call__(self, net: Any, arguments: Arguments) -> Pass:
        h = net.features(*arguments.args)
        return Pass(h, self.classify(net, h))

    def classify(self, net: Any, h: Tensor) -> Tensor:
        return cast(Tensor, net.classify(h))


@dataclass(frozen=True)
class LayerRoute:
    """Features at the input or output of a layer; the layers after it are the head.

    Attributes:
        layer, side: where the features are.
        reduction: how a map or tokens become B×d.
        head: the layers that make logits of features, one after the other.
        ending: what the module does with the logits; those before it are taken.
        output: the entry of the module's output that has the logits.
    """

    layer: str
    side: Side
    reduction: str
    head: tuple[str, ...]
    ending: Ending = "none"
    output: str | None = None

    def __call__(self, net: nn.Module, arguments: Arguments) -> Pass:
        wanted: dict[str, tuple[str, Side]] = {"h": (self.layer, self.side)}
        if self.ending != "none":
            wanted["z"] = (self.head[-1], "output")
        with captured(net, wanted) as found:
            result = net(*arguments.args, **arguments.kwargs)
        h = _REDUCTIONS[self.reduction][1](found["h"])
        return Pass(h, found["z"] if "z" in wanted else logits_of(result, self.output))

    def classify(self, net: nn.Module, h: Tensor) -> Tensor:
        for name in self.head:
            h = net.get_submodule(name)(h)
        return h


def logits_of(result: Any, entry: str | None = None) -> Tensor:
    """The logits in what a module returns: a tensor, the entry that its owner names, or ``logits``.

    A tensor is accepted also where an entry is named: some modules return more than the logits only in training.
    """
    if isinstance(result, Tensor):
        return result
    found = _entry(result, entry) if entry else _entry(result, "logits", result)
    if isinstance(found, tuple | list) and len(found) == 1:
        (found,) = found
    if isinstance(found, Tensor):
        return found
    known = _entries(result)
    what = f"has no entry {entry!r}" if entry else f"is a {type(result).__name__}"
    raise UsageError(
        f"the output {what}: name the entry with the logits, [output=ENTRY]"
        + (f"; there are {', '.join(known)}" if known else "")
    )


def _entry(result: Any, name: str, default: Any = None) -> Any:
    if isinstance(result, Mapping):
        return result.get(name, default)
    if isinstance(result, tuple | list) and name.isdecimal():
        return result[int(name)] if int(name) < len(result) else default
    return getattr(result, name, default)


def _entries(result: Any) -> list[str]:
    if isinstance(result, Mapping):
        return [str(key) for key in result]
    if isinstance(result, tuple | list):
        return [str(k) for k in range(len(result))]
    return sorted(getattr(result, "__dict__", {}))


METHODS = ("forward_features and forward_head", "features and classify")


def own_methods(net: nn.Module) -> Iterator[tuple[str, Route]]:
    """The routes by methods that the module has, with the names of the methods."""
    if all(callable(getattr(net, name, None)) for name in ("forward_features", "forward_head", "get_classifier")):
        yield METHODS[0], TimmRoute()
    if all(callable(getattr(net, name, None)) for name in ("features", "classify")):
        yield METHODS[1], MethodRoute()


def layer_routes(calls: list[LayerCall], logits: Tensor, named: str | None, output: str | None) -> Iterator[LayerRoute]:
    """Routes at the layer that the owner named, or at the last linear one, whose head gives the logits."""
    call = _feature_call(calls, named)
    side: Side = "output" if named else "input"
    y = call.output if named else call.input
    after = calls_after(calls, call.ended if named else call.started - 1)
    if y is None:
        return
    for reduction, (dimensions, reduce) in _REDUCTIONS.items():
        if dimensions not in (0, y.ndim):
            continue
        for first in range(len(after) if named else 1):
            head = _without_ending(calls, after[first:])
            if not head:
                continue
            try:
                z = reduce(y)
                for layer in head:
                    z = layer.layer(z)
            except Exception:  # a layer of the user refuses the shape: not this way
                continue
            for ending, function in _ENDINGS.items():
                if z.shape == logits.shape and close(function(z), logits):
                    yield LayerRoute(call.name, side, reduction, tuple(c.name for c in head), ending, output)


def _without_ending(calls: list[LayerCall], head: list[LayerCall]) -> list[LayerCall]:
    """The layers of a head without a softmax layer at the end. A container that ends with one becomes its layers."""
    while head:
        last = head[-1]
        inner = [call for call in calls if last.started < call.started and call.ended < last.ended]
        if isinstance(last.layer, _ENDING_LAYERS):
            head = head[:-1]
        elif any(isinstance(call.layer, _ENDING_LAYERS) and call.output is last.output for call in inner):
            head = [*head[:-1], *calls_after(inner, last.started)]
        else:
            break
    return head


def _feature_call(calls: list[LayerCall], named: str | None) -> LayerCall:
    found = [c for c in calls if (c.name == named if named else isinstance(c.layer, nn.Linear))]
    if found:
        return found[-1]
    if named is None:
        raise UsageError("it calls no linear layer (nn.Linear)")
    raise UsageError(f"features = {named!r} is not a layer that it calls")


def close(one: Tensor, two: Tensor) -> bool:
    """Equal up to rounding."""
    return one.shape == two.shape and bool((one - two).norm() <= 1e-4 * two.norm() + 1e-6)


def _are_probabilities(z: Tensor) -> bool:
    return bool((z >= 0).all()) and close(z.sum(dim=1), torch.ones_like(z[:, 0]))


def problem(route: Route, net: nn.Module, arguments: Arguments, logits: Tensor) -> str:
    """Why a route does not give the features and logits of a module; empty where it does."""
    try:
        h, z, _ = route(net, arguments)
        again = route.classify(net, h)
    except Exception as error:  # code of the user may raise anything
        return one_line(error)
    if h.ndim != 2:
        return f"its features have the shape {tuple(h.shape)}, not B×d"
    if not close(again, z):
        return "its head applied to the features does not give the logits"
    if _are_probabilities(z):
        return "its outputs are probabilities, not logits"
    if not any(close(end(z), logits) for end in _ENDINGS.values()):
        return "its logits are not those of the forward pass"
    return ""


def one_line(error: Exception) -> str:
    """An error of the user's code in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
