"""Ensemble distillation of features on public data, for self-supervised clients.

FedFoA's tables have a FedDF that distils on generated samples, which is not implemented. This is Lin et al.'s ensemble
distillation on unlabeled public samples, with features in place of logits.
"""

from torch import Tensor

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client
from fedchoir.methods.fedmd_ssl import FedMDFeatures


class EnsembleFeatures(FedMDFeatures):
    """Public phase: KL(σ(Z̄) ‖ σ(Z)) of calibrated features, temperature 1. Local phase: BYOL."""

    name = "ensemble-ssl"
    aliases = ("feddf-ssl",)
    title = "self-supervised, ensemble distillation of features on public data"
    paper = "after Lin et al., NeurIPS 2020"

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return kd(self.calibrated(client, batch.inputs), batch["features"], temperature=1.0)
