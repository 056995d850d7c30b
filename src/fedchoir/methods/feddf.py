"""FedDF. Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020."""

from torch import Tensor

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client, PublicMethod


class FedDF(PublicMethod):
    """Public phase: KL(σ(z̄) ‖ σ(z)) to the mean logits of all clients, temperature 1."""

    name = "feddf"
    title = "ensemble distillation on public data (KL)"
    paper = "Lin et al., NeurIPS 2020"
    supports_dp = True

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return kd(client.logits(batch.inputs), batch["logits"], temperature=1.0)
