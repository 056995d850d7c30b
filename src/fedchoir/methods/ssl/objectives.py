"""Self-supervised objectives on two views: BYOL, SimSiam and SimCLR, with lightly's heads and losses.

The encoder is a client's model up to its features, followed by a linear calibration layer to a common width: h → Z
(B×n). An objective adds heads on Z as modules of the client: ``projector``, ``predictor`` and, for BYOL, ``target``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fedchoir.losses import nt_xent
from fedchoir.methods.api import Batch, Client
from fedchoir.models import Model, laid_out
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.methods.self_supervised import SelfSupervisedParams


def lightly_heads() -> Any:
    """lightly's projection and prediction heads."""
    try:
        from lightly.models.modules import heads
    except ImportError:
        raise UsageError("self-supervised methods need lightly: pip install 'fedchoir[ssl]'") from None
    return heads


def negative_cosine(p: Tensor, y: Tensor) -> Tensor:
    """lightly's −cos(p, y), averaged over the batch; ``y`` is detached."""
    from lightly.loss import NegativeCosineSimilarity

    return cast(Tensor, NegativeCosineSimilarity()(p, y.detach()))


def decorrelation(kind: str, z1: Tensor, z2: Tensor) -> Tensor:
    """lightly's VICReg (Bardes et al., ICLR 2022) or Barlow Twins (Zbontar et al., ICML 2021) loss of two views."""
    from lightly.loss import BarlowTwinsLoss, VICRegLoss

    loss = VICRegLoss() if kind == "vicreg" else BarlowTwinsLoss()
    return cast(Tensor, loss(z1, z2))


class SimCLR:
    """NT-Xent between the two views (Chen et al., ICML 2020)."""

    heads = "SimCLR"  # the first part of the names of lightly's heads

    def __init__(self, params: SelfSupervisedParams, dim: int) -> None:
        self.params, self.dim, self.lightly = params, dim, lightly_heads()

    def modules(self, model: Model, calibration: nn.Module) -> dict[str, nn.Module]:
        """The heads that a client needs in addition to its model and calibration layer."""
        linear = self.params.projector == "linear"
        return {"projector": nn.Identity() if linear else self.head("Projection", self.params.hidden)}

    def head(self, kind: str, hidden: int) -> nn.Module:
        return cast(nn.Module, getattr(self.lightly, f"{self.heads}{kind}Head")(self.dim, hidden, self.dim))

    def loss(self, client: Client, batch: Batch, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of a batch whose two views have the calibrated features z1 and z2, B×n."""
        projector = client.modules["projector"]
        return nt_xent(projector(z1), projector(z2), self.params.temperature)

    def after_step(self, client: Client) -> None:
        """Called after every optimiser step."""


class SimSiam(SimCLR):
    """Each view's prediction matches the other view's detached projection (Chen and He, CVPR 2021)."""

    heads = "SimSiam"

    def modules(self, model: Model, calibration: nn.Module) -> dict[str, nn.Module]:
        return {**super().modules(model, calibration), "predictor": self.head("Prediction", self.predictor_width)}

    @property
    def predictor_width(self) -> int:
        return max(self.params.hidden // 4, 2)  # a bottleneck

    def loss(self, client: Client, batch: Batch, z1: Tensor, z2: Tensor) -> Tensor:
        projector, predictor = client.modules["projector"], client.modules["predictor"]
        y1, y2 = projector(z1), projector(z2)
        return (negative_cosine(predictor(y1), y2) + negative_cosine(predictor(y2), y1)) / 2


class BYOL(SimSiam):
    """Each view's prediction matches the target network's projection of the other view (Grill et al., 2020)."""

    heads = "BYOL"

    def modules(self, model: Model, calibration: nn.Module) -> dict[str, nn.Module]:
        heads = super().modules(model, calibration)
        return {**heads, "target": Target(model, calibration, heads["projector"])}

    @property
    def predictor_width(self) -> int:
        return self.params.hidden

    def loss(self, client: Client, batch: Batch, z1: Tensor, z2: Tensor) -> Tensor:
        """eq. 2 of BYOL for both orders of the views: ‖q̄ − ȳ‖² = 2 − 2·cos(q, y)."""
        projector, predictor, target = (client.modules[name] for name in ("projector", "predictor", "target"))
        with torch.no_grad(), client._autocast():
            y1, y2 = target(batch.inputs).float(), target(batch["view2"]).float()
        p1, p2 = predictor(projector(z1)), predictor(projector(z2))
        return 4 + 2 * (negative_cosine(p1, y2) + negative_cosine(p2, y1))

    def after_step(self, client: Client) -> None:
        steps = client.rounds * client.settings.epochs_of(client.index) * client.steps_per_epoch()
        target = cast(Target, client.modules["target"])
        total = steps if self.params.target_schedule == "cosine" else 0
        target.update(online_parameters(client), self.params.target_momentum, total)


class Target(nn.Module):
    """BYOL's target network: a moving average of encoder, calibration and projector, without gradients."""

    steps: Tensor

    def __init__(self, model: Model, calibration: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(
            laid_out(model.encoder()), deepcopy(calibration), deepcopy(projector)
        ).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Projections B×n."""
        projections: Tensor = self.network(images)
        return projections

    def momentum(self, start: float, total: int) -> Tensor:
        """The momentum of this step: from ``start`` to 1 along half a cosine over ``total`` steps, constant if
        ``total`` is 0. It is computed on the device, so that a captured step follows the schedule."""
        if total == 0:
            return torch.full_like(self.steps, start)
        progress = (self.steps / max(total - 1, 1)).clamp(max=1)
        return 1 - (1 - start) * (1 + torch.cos(math.pi * progress)) / 2

    @torch.no_grad()
    def update(self, online: Iterable[Tensor], start: float, total: int) -> None:
        """One moving-average step towards the online parameters, in place."""
        keep = self.momentum(start, total)
        slow: list[Tensor] = list(self.parameters())
        torch._foreach_mul_(slow, keep)
        torch._foreach_add_(slow, list(torch._foreach_mul(list(online), 1 - keep)))
        self.steps += 1

    @torch.no_grad()
    def copy(self, online: Iterable[Tensor]) -> None:
        """Copy the online network."""
        for slow, fast in zip(self.parameters(), online, strict=True):
            slow.copy_(fast)


def online_parameters(client: Client) -> list[nn.Parameter]:
    """The online parameters in the target's order."""
    modules = (client.modules["calibration"], client.modules["projector"])
    return [*client.model.encoder_parameters(), *(p for module in modules for p in module.parameters())]


OBJECTIVES = {"byol": BYOL, "simsiam": SimSiam, "simclr": SimCLR}
