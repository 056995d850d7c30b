"""Any ``nn.Module`` as a `Model`: its features and feature map are found by convention or named by its owner."""

from __future__ import annotations

import inspect
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedchoir.models.base import Model
from fedchoir.models.feature_maps import MapLayout
from fedchoir.models.layer_calls import captured
from fedchoir.models.routes import Arguments, Pass
from fedchoir.models.search import Search
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.input_spec import InputSpec


class AdaptedModel(Model):
    """A module of the user's behind the interface of all models. It stays as it is, under the name ``net``."""

    def __init__(self, spec: ModelSpec, net: nn.Module, num_classes: int, inputs: InputSpec) -> None:
        arguments = _CallArguments(net, inputs)
        found = Search(spec, net, num_classes, inputs, arguments).find()
        channels = found.map.channels if found.map else 0
        super().__init__(str(spec), map_dim=channels, feature_dim=found.feature_dim, num_classes=num_classes)
        self.net = net.train()
        self.notes, self._gpu_format = found.notes, found.gpu_format
        self._route, self._map, self._head, self._blocks = found.route, found.map, found.head, found.blocks
        read = [found.map.layer if found.map else None, getattr(found.route, "layer", None)]
        self._watched = (*found.head, *(name for name in read if name))
        self._arguments = arguments
        self._without_head = False

    def features(self, x: Tensor) -> Tensor:
        return self._pass(x).features

    def classify(self, h: Tensor) -> Tensor:
        return h if self._without_head else self._route.classify(self.net, h)

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, z, _ = self._pass(x)
        return h, z

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layout = self._map_layout()
        h, z, y = self._pass(x, with_map=True)
        assert y is not None
        return layout(y), h, z

    def forward(self, x: Tensor) -> Tensor:
        h, z, _ = self._pass(x)
        return h if self._without_head else z

    def map_and_gradient(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        layout = self._map_layout()
        _, z, y = self._pass(x.detach().requires_grad_(x.is_floating_point()), with_map=True)
        assert y is not None
        (gradient,) = torch.autograd.grad(z.gather(1, classes[:, None]).sum(), y)
        return layout(y.detach()), layout(gradient)

    # -- modules ---------------------------------------------------------------------------------------------------

    @property
    def memory_format(self) -> torch.memory_format:
        """Contiguous on a CPU: channels-last gains little for such models there, and would change their numbers."""
        return self._gpu_format if any(p.is_cuda for p in self.net.parameters()) else torch.contiguous_format

    def head_modules(self) -> list[nn.Module]:
        return [self.net.get_submodule(name) for name in self._head]

    def encoder(self) -> AdaptedModel:
        copy = deepcopy(self)
        for name in copy._head:
            copy.net.set_submodule(name, nn.Identity())
        copy._without_head = True
        return copy

    def stage_modules(self) -> dict[str, nn.Module]:
        return {name: module for name, module in self.net.named_children() if name not in self._head}

    def recomputable(self) -> list[nn.Module]:
        return [self.net.get_submodule(name) for name in self._blocks]

    def watched_modules(self) -> list[nn.Module]:
        return [self.net.get_submodule(name) for name in self._watched]

    def bare_names(self) -> dict[str, str]:
        return {name: name.removeprefix("net.") for name in self.state_dict()}

    def _pass(self, x: Tensor, with_map: bool = False) -> Pass:
        layer = self._map.layer if with_map and self._map else None
        with captured(self.net, {"map": (layer, "output")} if layer else {}) as found:
            result = self._route(self.net, self._arguments(x))
        return result._replace(raw_map=found.get("map", result.raw_map))

    def _map_layout(self) -> MapLayout:
        self.require_map("feature_map")
        assert self._map is not None
        return self._map.layout


class _CallArguments:
    """Makes a module's arguments of a batch: one tensor, the tensors of a sample of several, and the mask of a text."""

    def __init__(self, net: nn.Module, inputs: InputSpec) -> None:
        takes = inspect.signature(type(net).forward).parameters
        self._tensors = inputs.tensors
        self._mask = inputs.modality == "text" and "attention_mask" in takes

    def __call__(self, x: Tensor) -> Arguments:
        kwargs = {"attention_mask": (x != 0).long()} if self._mask else {}
        if not self._tensors:
            return Arguments((x.contiguous(),), kwargs)
        pieces = x.split([torch.Size(shape).numel() for shape in self._tensors], dim=1)
        shaped = (piece.reshape(-1, *shape) for piece, shape in zip(pieces, self._tensors, strict=True))
        return Arguments(tuple(shaped), kwargs)
