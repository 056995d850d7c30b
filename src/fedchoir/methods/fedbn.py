"""FedBN. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021."""

from functools import cached_property
from typing import Any

from fedchoir.methods.api import Client
from fedchoir.methods.fedavg import FedAvg
from fedchoir.models.normalisation import normalisation_names
from fedchoir.payload import KEPT, MODEL, Payload, sends, state_payload


def shared_weights(method: Any) -> dict[str, str]:
    """All weights of the model but those of normalisation layers. Only a method with clients knows their names."""
    return {"weights": MODEL, **{f"weights/{name}": KEPT for name in sorted(getattr(method, "own_names", ()))}}


class FedBN(FedAvg):
    """FedAvg whose clients keep their normalisation layers: parameters and statistics are neither sent nor averaged.

    With the weights θ of all other layers and the normalisation layers φ_k of client k:

        (θ_k, φ_k) ← local training from (θ, φ_k),   θ ← Σ p_k θ_k

    Every client evaluates its own model (θ, φ_k). A domain with other input statistics, such as another scanner, then
    does not disturb the others. The paper keeps BatchNorm; here GroupNorm, LayerNorm, InstanceNorm and RMSNorm stay,
    too. For a model without normalisation this is FedAvg.
    """

    name = "fedbn"
    title = "FedAvg whose clients keep their normalisation layers"
    paper = "Li et al., ICLR 2021"
    supports_dp = True
    evaluates_per_client = True

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names of the tensors that clients keep."""
        return frozenset(normalisation_names(self.architecture))

    @sends(shared_weights)
    def upload(self, client: Client) -> Payload:
        state = client.model.state_dict()
        return state_payload("weights", {name: t for name, t in state.items() if name not in self.own_names})

    def download(self, client: Client, received: Payload) -> None:
        client.model.load_state_dict({**client.model.state_dict(), **received.under("weights")})
