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

from fedchoir.losses.class_targets import class_distillation
from fedchoir.losses.consensus import (
    agreed_labels,
    confident_consensus,
    diversity_kl,
    entropy_reduction,
    soft_cross_entropy,
)
from fedchoir.losses.contrastive import moon, nt_xent
from fedchoir.losses.correction import gradient_correction
from fedchoir.losses.correlation import cross_correlation, decorrelation, fccm
from fedchoir.losses.distillation import cnd, fntd, kd, pool_predictions, pooled_kl, sce
from fedchoir.losses.diversity import feature_diversity
from fedchoir.losses.factorization import feature_correlation, mutual_understanding, procrustes, understanding_gaps
from fedchoir.losses.gaussian import fbm, fia, gaussian
from fedchoir.losses.global_prototypes import cluster_contrast, margin_contrast, prototype_distance
from fedchoir.losses.matching import class_means, mean_matching
from fedchoir.losses.prototypes import apcl, class_prototypes, fuse_prototypes, mfa, mixed_features, prototype_contrast
from fedchoir.losses.proximal import ewc, proximal
from fedchoir.losses.similarity import fisl, frr, instance_similarity
from fedchoir.losses.smoothing import fntd_cap, label_smoothing, matched_smoothing

__all__ = [
    "agreed_labels", "apcl", "class_distillation", "class_means", "class_prototypes", "cluster_contrast", "cnd",
    "confident_consensus",
    "cross_correlation", "decorrelation", "diversity_kl", "entropy_reduction", "ewc", "fbm", "fccm",
    "feature_correlation", "feature_diversity", "fia", "fisl", "fntd", "fntd_cap", "frr", "fuse_prototypes",
    "gaussian", "gradient_correction", "instance_similarity", "kd", "label_smoothing", "margin_contrast",
    "matched_smoothing", "mean_matching", "mfa", "mixed_features", "moon", "mutual_understanding", "nt_xent",
    "pool_predictions", "pooled_kl", "procrustes", "prototype_contrast", "prototype_distance", "proximal", "sce",
    "soft_cross_entropy", "understanding_gaps",
]  # fmt: skip
