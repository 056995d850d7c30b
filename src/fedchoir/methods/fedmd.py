"""FedMD. Li and Wang, Heterogenous Federated Learning via Model Distillation, 2019."""

from torch import Tensor
from torch.nn.functional import l1_loss

from fedchoir.methods.api import Batch, Client, PublicMethod


class FedMD(PublicMethod):
    """Public phase: L1 distance between the client's logits and the mean over clients."""

    name = "fedmd"
    title = "L1 distance to the mean logits on public data"
    paper = "Li and Wang, NeurIPS workshop 2019"
    supports_dp = True

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return l1_loss(client.logits(batch.inputs), batch["logits"])
