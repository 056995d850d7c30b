"""FedMD. Li and Wang, Heterogenous Federated Learning via Model Distillation, 2019."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import l1_loss

from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.methods.base import PublicMethod


class FedMD(PublicMethod):
    """Public phase: L1 distance between own logits and the mean of everyone's."""

    name = "fedmd"
    title = "logits on public data drawn to their mean (L1)"
    paper = "Li and Wang, NeurIPS workshop 2019"
    supports_dp = True

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return l1_loss(client.logits(batch.images), batch["logits"])
