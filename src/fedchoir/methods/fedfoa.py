"""FedFoA. Liu et al., Feature Correlation-guided Knowledge Transfer for Federated Self-supervised Learning, 2022."""

from pydantic import Field

from fedchoir.methods.byol import BYOL
from fedchoir.methods.self_supervised import SelfSupervisedParams


class FedFoAParams(SelfSupervisedParams):
    foa: bool = Field(True, description="exchange of feature correlations; off: BYOL alone")


class FedFoA(BYOL):
    """Self-supervised clients of any architecture share one n×n matrix per round: R̄, the mean over batches of R with
    Z = QR. From round ``t_warm`` on they align their features with those of more independent clients (eq. 7, 13).
    """

    name = "fedfoa"
    title = "self-supervised, feature correlations shared (n×n a round)"
    paper = "Liu et al., 2022"
    Params = FedFoAParams
    params: FedFoAParams
