"""Class-activation maps: where a model looks when it says what it says."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.models import VisionModel


def grad_cam(model: VisionModel, images: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM (Selvaraju et al., ICCV 2017) on the last feature map: B×3×S×S, B → B×S×S in [0, 1].

    The map's channels are weighted by the mean gradient of the class's logit over all positions, summed and cut at 0;
    each image is scaled by its own maximum. A map that is nowhere positive stays 0.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            maps = model.feature_map(images).detach().requires_grad_()
            logits = model.classify(model.neck(maps))
            (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), maps)
    finally:
        model.train(was_training)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    heat = F.relu((weights * maps.detach()).sum(dim=1, keepdim=True))
    heat = F.interpolate(heat, size=images.shape[-2:], mode="bilinear", align_corners=False).squeeze(1)
    return heat / heat.amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(heat.dtype).tiny)
