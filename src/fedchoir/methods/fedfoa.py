"""FedFoA. Liu et al., Feature Correlation-guided Knowledge Transfer for Federated Self-supervised Learning, 2022."""

from __future__ import annotations

from pydantic import Field

from fedchoir.methods.byol import BYOL
from fedchoir.methods.self_supervised import SelfSupervisedParams


class FedFoAParams(SelfSupervisedParams):
    foa: bool = Field(True, description="the exchange of feature correlations; without it this is BYOL alone")


class FedFoA(BYOL):
    """Self-supervised clients of any architecture share one n×n matrix a round: R̄, the mean of R over their batches,
    Z = QR. From round ``t_warm`` on each is drawn to features that the more independent of the others could express.
    """

    name = "fedfoa"
    title = "self-supervised, feature correlations shared (n×n a round)"
    paper = "Liu et al., 2022"
    Params = FedFoAParams
    params: FedFoAParams
