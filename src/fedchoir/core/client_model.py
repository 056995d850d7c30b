"""A client's model and auxiliary modules on a device. Outputs are float32, whatever the precision of the pass."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedchoir.core.training import ParameterGroup
from fedchoir.models import Model, laid_out


class ClientModel:
    """The forward passes that losses are built from."""

    def __init__(self, model: Model, modules: Mapping[str, nn.Module], device: torch.device, precision: str) -> None:
        self.model: Model = laid_out(model.to(device))
        self.modules = nn.ModuleDict(dict(modules)).to(device)
        self.device = device
        self.precision = precision
        self.class_weights: Tensor | None = None

    def features_and_logits(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features B×d and logits B×C of one forward pass."""
        with self._autocast():
            h, z = self.model.features_and_logits(inputs)
        return h.float(), z.float()

    def stages(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Feature map B×D×h×w, features and logits of one forward pass."""
        with self._autocast():
            m, h, z = self.model.stages(inputs)
        return m.float(), h.float(), z.float()

    def features(self, inputs: Tensor) -> Tensor:
        """Features B×d alone."""
        with self._autocast():
            return self.model.features(inputs).float()

    def logits(self, inputs: Tensor) -> Tensor:
        return self.features_and_logits(inputs)[1]

    def classify(self, h: Tensor) -> Tensor:
        """Logits B×C of features B×d."""
        with self._autocast():
            return self.model.classify(h).float()

    def run_module(self, name: str, x: Tensor) -> Tensor:
        """The output of an auxiliary module."""
        with self._autocast():
            return self.modules[name](x).float()

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy with the client's class weights, where it has some."""
        return F.cross_entropy(logits, labels, weight=self.class_weights)

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the model and of the auxiliary modules, in the order of their groups."""
        return [p for group in self.parameter_groups() for p in group.parameters]

    def parameter_groups(self) -> list[ParameterGroup]:
        """The same in groups: the model's layers before the head may have a learning rate of their own."""
        every = [p for p in (*self.model.parameters(), *self.modules.parameters()) if p.requires_grad]
        if self.model.trunk_lr == 1:
            return [ParameterGroup(every)]
        trunk = {id(p) for p in self.model.encoder_parameters()}
        groups = [
            ParameterGroup([p for p in every if id(p) in trunk], self.model.trunk_lr),
            ParameterGroup([p for p in every if id(p) not in trunk]),
        ]
        return [group for group in groups if group.parameters]

    def _train_mode(self) -> None:
        self.model.train()
        self.modules.train()

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of forward passes, for losses that call an auxiliary module's own functions."""
        return self._autocast()

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
