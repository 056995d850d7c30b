"""DS-FL. Itahara et al., Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data, IEEE Transactions on Mobile Computing 2023 (arXiv 2020)."""

from typing import Literal

from torch import Tensor

from fedchoir.losses import entropy_reduction, soft_cross_entropy
from fedchoir.methods.api import Batch, Client, Field, PublicBatch, PublicMethod, Received, Settings
from fedchoir.payload import Payload, sends


class DSFLParams(Settings):
    aggregation: Literal["era", "mean"] = Field(
        "era", description="era: mean probabilities sharpened by entropy reduction aggregation; mean: as they are"
    )
    temperature: float = Field(0.1, gt=0, description="T: temperature of the entropy reduction")


class DSFL(PublicMethod):
    """Public phase: cross-entropy to the sharpened mean of all clients' probabilities.

    With p_k = σ(z_k) on a public batch, the soft label and the loss of client i are

        p̂ = σ(Σ_k p_k / (K·T)),   L_i = −Σ_u p̂^u log p_i^u

    ``aggregation = mean`` is the paper's comparison, p̂ = Σ_k p_k / K. The paper labels the public set once a round and
    distils for several epochs; here clients exchange after every public batch, or once per pass with ``sync = epoch``.
    Its server also trains a global model on the soft labels; here the clients' own models are evaluated instead.
    """

    name = "ds-fl"
    title = "cross-entropy to the sharpened mean probabilities on public data"
    paper = "Itahara et al., IEEE TMC 2023"
    Params = DSFLParams
    supports_dp = True
    params: DSFLParams

    @sends(probabilities="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        _, z = client.public_outputs(batch)
        return Payload(probabilities=z.softmax(dim=1))

    def consensus(self, aggregated: list[Payload]) -> Received:
        return [Payload(label=self.soft_label(mean["probabilities"])) for mean in aggregated]

    def soft_label(self, mean: Tensor) -> Tensor:
        """p̂ from the mean probabilities, B×C."""
        p = self.params
        return entropy_reduction(mean, p.temperature) if p.aggregation == "era" else mean

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return soft_cross_entropy(client.logits(batch.inputs), batch["label"])
