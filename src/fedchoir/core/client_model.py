"""A client's model and auxiliary modules on a device. Outputs are float32, whatever the precision of the pass."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fedchoir.models import VisionModel


class ClientModel:
    """The forward passes that losses are built from."""

    def __init__(
        self, model: VisionModel, modules: Mapping[str, nn.Module], device: torch.device, precision: str
    ) -> None:
        self.model: VisionModel = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.modules = nn.ModuleDict(dict(modules)).to(device)
        self.device = device
        self.precision = precision

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features B×d and logits B×C of one forward pass."""
        with self._autocast():
            h, z = self.model.features_and_logits(images)
        return h.float(), z.float()

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Feature map B×D×h×w, features and logits of one forward pass."""
        with self._autocast():
            m, h, z = self.model.stages(images)
        return m.float(), h.float(), z.float()

    def features(self, images: Tensor) -> Tensor:
        """Features B×d alone."""
        with self._autocast():
            return self.model.features(images).float()

    def logits(self, images: Tensor) -> Tensor:
        return self.features_and_logits(images)[1]

    def classify(self, h: Tensor) -> Tensor:
        """Logits B×C of features B×d."""
        with self._autocast():
            return self.model.classify(h).float()

    def run_module(self, name: str, x: Tensor) -> Tensor:
        """The output of an auxiliary module."""
        with self._autocast():
            return self.modules[name](x).float()

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the model and of the auxiliary modules."""
        return [p for p in (*self.model.parameters(), *self.modules.parameters()) if p.requires_grad]

    def _train_mode(self) -> None:
        self.model.train()
        self.modules.train()

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
