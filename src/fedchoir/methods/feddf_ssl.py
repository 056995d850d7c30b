"""FedDF on features: Lin et al.'s ensemble distillation for self-supervised clients."""

from torch import Tensor

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client
from fedchoir.methods.fedmd_ssl import FedMDFeatures


class FedDFFeatures(FedMDFeatures):
    """Public phase: KL(σ(Z̄) ‖ σ(Z)) of calibrated features, temperature 1. Local phase: BYOL."""

    name = "feddf-ssl"
    title = "self-supervised, ensemble distillation of features on public data"
    paper = "Lin et al., NeurIPS 2020, as in Liu et al., 2022"

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return kd(self.calibrated(client, batch.inputs), batch["features"], temperature=1.0)
