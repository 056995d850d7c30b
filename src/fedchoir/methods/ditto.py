"""Ditto. Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021."""

from torch import Tensor

from fedchoir.losses import proximal
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.personal_model import PersonalModel


class DittoParams(Settings):
    lam: float = Field(1.0, ge=0, description="λ: weight of the proximal term λ/2·‖v − w‖² of the personal model")


class Ditto(PersonalModel):
    """FedAvg, and beside it a personal model v_k of every client, drawn to the global weights w.

    In each round a client takes local steps from the received w and from its own v_k, on the same batches:

        w_k ← w_k − η ∇F_k(w_k),   v_k ← v_k − η (∇F_k(v_k) + λ (v_k − w))

    The server averages w_k. The personal model is evaluated. λ = 0 trains v_k alone; a large λ gives the global model.
    The paper also chooses λ for each client from its validation samples; here it is one option for all.
    """

    name = "ditto"
    title = "a personal model with a proximal term to the averaged one"
    paper = "Li et al., ICML 2021"
    Params = DittoParams
    params: DittoParams

    def local_update(self, client: Client) -> None:
        parameters = client.modules["global_model"].named_parameters()
        client.memory["global"] = {name: p.detach() for name, p in parameters}  # w: it does not move with w_k
        super().local_update(client)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        distance = proximal(client.model.parameters(), client.stored_weights("global").values())
        return super().local_loss(client, batch) + self.params.lam * distance
