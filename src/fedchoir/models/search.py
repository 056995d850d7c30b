"""Finds the features, the head and the last feature map of a module that nobody here has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import pooling

from fedchoir.models.feature_maps import MapLayout
from fedchoir.models.layer_calls import LayerCall, calls_after, record_calls
from fedchoir.models.routes import (
    METHODS,
    Arguments,
    LayerRoute,
    Route,
    TimmRoute,
    close,
    layer_routes,
    logits_of,
    one_line,
    own_methods,
    problem,
)
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

_SAMPLES = 3  # of the pass that finds the features
_POOLING = (pooling._AdaptiveAvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AvgPoolNd, pooling._MaxPoolNd)
_MAX_NAMES = 12  # of layers in an error


@dataclass(frozen=True)
class MapSource:
    """Where the last feature map is: the output of a layer, or (without one) what the route gives."""

    layer: str | None
    layout: MapLayout
    channels: int


@dataclass(frozen=True)
class Found:
    """What a search found.

    ``head`` are the names of the layers after the features, ``blocks`` those before them that take one tensor, once.
    ``gpu_format`` is that of 4-dimensional weights on a GPU: channels-last where the module allows it.
    """

    route: Route
    head: tuple[str, ...]
    feature_dim: int
    map: MapSource | None
    blocks: tuple[str, ...]
    gpu_format: torch.memory_format
    notes: tuple[str, ...]


class Search:
    """Finds the features, the head and the feature map of a module on a few random samples."""

    def __init__(
        self,
        spec: ModelSpec,
        net: nn.Module,
        num_classes: int,
        inputs: InputSpec,
        arguments: Callable[[Tensor], Arguments],
    ) -> None:
        self.spec, self.net, self.num_classes, self.inputs = spec, net, num_classes, inputs
        self.arguments = arguments(_random_samples(inputs))
        self.notes: list[str] = []

    def find(self) -> Found:
        with torch.no_grad(), _eval_mode(self.net):
            width = self._logits(self.net).shape[1]
            trial = _perturbed(self.net)  # a head of zeros would agree with any features
            logits = self._logits(trial)
            calls = record_calls(trial, lambda: self._call(trial))
            route = self._route(trial, logits, calls)
            if isinstance(route, LayerRoute) and route.ending != "none":
                self._note(f"ends with {route.ending}; the logits before it are used")
            h = route(trial, self.arguments).features
            head_calls = record_calls(trial, lambda: route.classify(trial, h))
            if width != self.num_classes:
                self._replace_head(head_calls, width)
            head = tuple(call.name for call in calls_after(head_calls, -1))
            source = self._map(trial, route, calls, h.shape[1])
            layout = self._gpu_format(trial, route, logits)
            self._check_training(trial.train(), route, width)
            return Found(route, head, h.shape[1], source, _blocks(calls, head), layout, tuple(self.notes))

    def _call(self, net: nn.Module) -> Any:
        return net(*self.arguments.args, **self.arguments.kwargs)

    def _logits(self, net: nn.Module) -> Tensor:
        """The logits of the samples; everything else that the module can do is refused here."""
        try:
            z = logits_of(self._call(net), self.spec.output)
        except UsageError as error:
            raise UsageError(f"model '{self.spec}': {error}") from None
        except Exception as error:  # code of the user may raise anything
            shapes = ", ".join("×".join(map(str, t.shape[1:])) for t in self.arguments.args)
            raise UsageError(
                f"model '{self.spec}' does not take {self.inputs.modality} samples of {shapes}: {one_line(error)}"
            ) from error
        if z.ndim != 2 or len(z) != _SAMPLES:
            raise UsageError(
                f"model '{self.spec}': its output for {_SAMPLES} samples has the shape {tuple(z.shape)}; it should be "
                f"{_SAMPLES}×{self.num_classes} logits"
            )
        return z

    def _gpu_format(self, net: nn.Module, route: Route, logits: Tensor) -> torch.memory_format:
        """Channels-last, if the module computes the same with it; code that calls ``view`` may refuse such tensors.

        One prediction and one training step of a copy. Whatever the copy raises counts as a refusal.
        """
        if all(p.ndim != 4 for p in net.parameters()):
            return torch.contiguous_format
        try:
            with torch.random.fork_rng(devices=[]):  # dropout draws numbers
                copy = deepcopy(net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                if not close(self._logits(copy), logits):
                    return torch.contiguous_format
                copy.train(self.spec.train != "head")
                with torch.enable_grad():
                    z = route(copy, self.arguments).logits
                    if z.requires_grad:  # its owner may have frozen it
                        z.sum().backward()
        except Exception:  # code of the user may raise anything; `_check_training` reports what its usual layout raises
            return torch.contiguous_format
        return torch.channels_last

    def _check_training(self, net: nn.Module, route: Route, width: int) -> None:
        """A module may do something else in training; with ``train=head`` it stays in evaluation mode."""
        if self.spec.train == "head":
            return
        try:
            with torch.random.fork_rng(devices=[]):  # dropout draws numbers
                z = route(net, self.arguments).logits
        except UsageError as error:
            raise UsageError(f"model '{self.spec}', in training: {error}") from None
        except Exception as error:  # code of the user may raise anything
            raise UsageError(f"model '{self.spec}' fails in training: {one_line(error)}") from error
        if z.shape != (_SAMPLES, width):
            raise UsageError(
                f"model '{self.spec}': its output for {_SAMPLES} samples has the shape {tuple(z.shape)} in training "
                f"and {(_SAMPLES, width)} in evaluation"
            )

    def _route(self, net: nn.Module, logits: Tensor, calls: list[LayerCall]) -> Route:
        """The first way to the features that is right."""
        named = self.spec.features
        tried = {} if named else dict.fromkeys(METHODS, "not there")
        for name, route in () if named else own_methods(net):
            if not (why := problem(route, net, self.arguments, logits)):
                return route
            tried[name] = why
        place = f"the output of '{named}'" if named else "the input of the last linear layer"
        tried[place] = "the layers after it do not give the logits"
        try:
            for candidate in layer_routes(calls, logits, named, self.spec.output):
                if not (why := problem(candidate, net, self.arguments, logits)):
                    return candidate
                tried[place] = why
        except UsageError as error:
            tried[place] = str(error)
        raise UsageError(
            f"model '{self.spec}': no features found; looked for "
            + ", ".join(f"{what} ({why})" for what, why in tried.items())
            + f"; {self._advice(net, logits, calls)}"
        )

    def _advice(self, net: nn.Module, logits: Tensor, calls: list[LayerCall]) -> str:
        """What would be right: one of the outer layers whose output can be the features, or two methods."""
        layers = list(dict.fromkeys(call.name for call in calls if "." not in call.name))[-_MAX_NAMES:]
        possible = []
        for name in layers:
            routes = layer_routes(calls, logits, name, self.spec.output)
            if any(not problem(route, net, self.arguments, logits) for route in routes):
                possible.append(name)
        if possible:
            return (
                f"name the layer whose output is the features, {self.spec.source}[features=LAYER], one of "
                + ", ".join(possible)
            )
        return "no layer's output would do: write the methods features(x) and classify(h), which gives logits"

    def _replace_head(self, calls: list[LayerCall], width: int) -> None:
        """Give the last linear layer one output per class."""
        linear = [call.name for call in calls if isinstance(call.layer, nn.Linear)]
        old = self.net.get_submodule(linear[-1]) if linear else None
        if isinstance(old, nn.Linear) and old.out_features == width:
            new = nn.Linear(old.in_features, self.num_classes, bias=old.bias is not None)
            self.net.set_submodule(linear[-1], new)
            with suppress(UsageError):
                if self._logits(self.net).shape[1] == self.num_classes:
                    self._note(f"its head had {width} outputs and was replaced by one for {self.num_classes} classes")
                    return
        raise UsageError(
            f"model '{self.spec}' has {width} outputs, and there are {self.num_classes} classes; its last layer is not "
            "linear, so it cannot be replaced: build it with num_classes outputs"
        )

    def _map(self, net: nn.Module, route: Route, calls: list[LayerCall], feature_dim: int) -> MapSource | None:
        """The layer that the owner named, what the route gives, or the last activation with positions."""
        if (name := self.spec.feature_map) is not None:
            named = [c.output for c in calls if c.name == name and c.output is not None]
            if not named or named[-1].ndim not in (3, 4):
                what = f"has the shape {tuple(named[-1].shape)}" if named else "is not a layer that it calls"
                raise UsageError(f"model '{self.spec}': feature_map = {name!r} {what}; it should give B×D×h×w")
            return _source(name, named[-1], MapLayout.of(named[-1], feature_dim, self.inputs))
        if isinstance(route, TimmRoute):
            y = route(net, self.arguments).raw_map
            assert y is not None
            return _source(None, y, MapLayout.of_timm(net))
        for call in reversed(_before_features(calls, route)):
            y = call.output
            if y is not None and y.ndim in (3, 4) and len(y) == _SAMPLES and not _one_per_channel(call):
                return _source(call.name, y, MapLayout.of(y, feature_dim, self.inputs))
        return None

    def _note(self, text: str) -> None:
        self.notes.append(f"model {self.spec}: {text}")


def _source(layer: str | None, y: Tensor, layout: MapLayout) -> MapSource:
    return MapSource(layer, layout, layout(y).shape[1])


def _blocks(calls: list[LayerCall], head: tuple[str, ...]) -> tuple[str, ...]:
    counts = Counter(call.name for call in calls)
    outer = (c for c in calls if "." not in c.name and not any(name.split(".")[0] == c.name for name in head))
    return tuple(call.name for call in outer if call.one_tensor and counts[call.name] == 1)


def _before_features(calls: list[LayerCall], route: Route) -> list[LayerCall]:
    """The calls between the first layer with weights and the features."""
    end = calls[-1].ended + 1
    if isinstance(route, LayerRoute):
        call = [c for c in calls if c.name == route.layer][-1]
        end = call.ended + 1 if route.side == "output" else call.started
    weights = [c.ended for c in calls if any(True for _ in c.layer.parameters())]
    return [c for c in calls if weights and min(weights) <= c.ended < end]


def _one_per_channel(call: LayerCall) -> bool:
    return isinstance(call.layer, _POOLING) and call.output is not None and call.output[0, 0].numel() == 1


def _random_samples(inputs: InputSpec) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    x = inputs.example(_SAMPLES)
    if inputs.modality == "text":
        return torch.randint(1, max(inputs.vocabulary, 2), x.shape, generator=draw)
    return torch.randn(x.shape, generator=draw)


def _perturbed(net: nn.Module) -> nn.Module:
    """A copy with slightly different weights."""
    draw = torch.Generator().manual_seed(0)
    copy = deepcopy(net)
    for p in copy.parameters():
        if p.is_floating_point():
            p.add_(torch.randn(p.shape, generator=draw).to(p), alpha=0.02)
    return copy


@contextmanager
def _eval_mode(net: nn.Module) -> Iterator[None]:
    was_training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(was_training)
