"""FedMD on features: Li and Wang's consensus on public data for self-supervised clients."""

from torch import Tensor
from torch.nn.functional import l1_loss

from fedchoir.methods.api import Batch, Client, PublicBatch, PublicMethod, Round, Script
from fedchoir.methods.self_supervised import SelfSupervised
from fedchoir.payload import Payload, sends


class FedMDFeatures(SelfSupervised, PublicMethod):
    """Public phase: L1 distance between calibrated features Z and their mean over clients. Local phase: BYOL."""

    name = "fedmd-ssl"
    title = "self-supervised, L1 distance to the mean features on public data"
    paper = "Li and Wang, 2019, as in Liu et al., 2022"

    def round(self, r: Round) -> Script:
        yield from self.receive_correlations(r)
        yield from super().round(r)
        yield from self.share_correlations()

    def averages(self, when: str) -> bool:
        """Not by default: heads and targets are not averaged and would not fit averaged encoders."""
        return self.params.average != "auto" and super().averages(when)

    @property
    def dims(self) -> dict[str, int]:
        return {"N": self.dim}

    @sends(features="B N")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        with client.batch_stats_frozen():
            return Payload(features=self.calibrated(client, client.public_samples(batch)))

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return l1_loss(self.calibrated(client, batch.inputs), batch["features"])
