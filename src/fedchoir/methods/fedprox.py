"""FedProx. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020."""

from torch import Tensor

from fedchoir.losses import proximal
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedavg import FedAvg, copy_parameters


class FedProxParams(Settings):
    mu: float = Field(0.01, ge=0, description="μ: weight of the proximal term μ/2·‖w − w_global‖²")


class FedProx(FedAvg):
    """FedAvg with a proximal term: CE + μ/2·‖w − w_global‖²."""

    name = "fedprox"
    title = "FedAvg with a proximal term to the global weights"
    paper = "Li et al., MLSys 2020"
    Params = FedProxParams
    params: FedProxParams

    def local_update(self, client: Client) -> None:
        # The client has just loaded the global model.
        client.memory["global"] = copy_parameters(client)
        super().local_update(client)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        distance = proximal(client.model.parameters(), client.stored_weights("global").values())
        return super().local_loss(client, batch) + self.params.mu * distance
