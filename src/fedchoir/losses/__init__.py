"""Losses as pure functions, one per equation; the docstring of each names its paper, equation and shapes.

Losses are means over the batch: scalars on the input's device and in its dtype. Targets (consensus, teachers,
prototypes, old features) are detached inside. Wrong arguments raise `ValueError`. Nothing synchronises with the device
(except FedFoA's ``solver="factors"``), so a training step can be captured in a CUDA graph.

>>> import torch
>>> from fedchoir import losses
>>> own, consensus = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0, 3.0], [2.0, 0.0]])
>>> abs(round(losses.fccm(own, consensus).item(), 4))  # the correlation is perfect: scale does not matter
0.0
"""

from fedchoir.losses.contrastive import moon, nt_xent
from fedchoir.losses.correlation import cross_correlation, decorrelation, fccm
from fedchoir.losses.distillation import cnd, fntd, kd, pool_predictions, pooled_kl, sce
from fedchoir.losses.factorization import feature_correlation, mutual_understanding, procrustes, understanding_gaps
from fedchoir.losses.gaussian import fbm, fia, gaussian
from fedchoir.losses.prototypes import apcl, class_prototypes, fuse_prototypes, mfa, mixed_features, prototype_contrast
from fedchoir.losses.proximal import ewc, proximal
from fedchoir.losses.similarity import fisl, frr, instance_similarity

__all__ = [
    "apcl", "class_prototypes", "cnd", "cross_correlation", "decorrelation", "ewc", "fbm", "fccm",
    "feature_correlation", "fia", "fisl", "fntd", "frr", "fuse_prototypes", "gaussian", "instance_similarity", "kd",
    "mfa", "mixed_features", "moon", "mutual_understanding", "nt_xent", "pool_predictions", "pooled_kl",
    "procrustes", "prototype_contrast", "proximal", "sce", "understanding_gaps",
]  # fmt: skip
