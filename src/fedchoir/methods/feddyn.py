"""FedDyn. Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021."""

import torch
from torch import Tensor

from fedchoir.losses import gradient_correction, proximal
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step
from fedchoir.methods.fedavg import copy_parameters
from fedchoir.methods.server_model import ServerModel
from fedchoir.payload import Payload, state_payload


class FedDynParams(Settings):
    alpha: float = Field(0.01, gt=0, description="α: weight of the dynamic regulariser")


class FedDyn(ServerModel):
    """FedAvg with a regulariser that changes every round, so that local and global optima agree in the end.

    A client minimises, from the global weights θ and with its last local gradient g_k (zero at first),

        L_k(θ_k) − ⟨g_k, θ_k⟩ + α/2·‖θ_k − θ‖²,   then g_k ← g_k − α (θ_k − θ).

    The server, with the share |P|/m of the clients that took part:

        h ← h − α |P|/m mean(θ_k − θ),   θ ← mean(θ_k) − h/α

    The server stores h/α. The paper averages clients equally; with ``weighting = size`` the weights are those of FedAvg
    (the released code divides α by a client's relative size instead). BatchNorm's statistics are averaged as in FedAvg.
    The global model θ is evaluated; the released code also plots the mean of all clients' last models.
    """

    name = "feddyn"
    title = "FedAvg with a dynamic regulariser"
    paper = "Acar et al., ICLR 2021"
    Params = FedDynParams
    params: FedDynParams

    def setup(self) -> Script:
        yield from super().setup()
        zeros = {name: torch.zeros_like(p) for name, p in self.architecture.named_parameters()}
        self.server |= state_payload("drift", zeros)

    def round(self, r: Round) -> Script:
        yield Step(self.download, received=Payload(self.server).only("weights"))
        yield Step(self.local_update)
        self.server_update((yield Exchange(self.upload, aggregator=self.weighting)), self.share(r.clients))

    def local_update(self, client: Client) -> None:
        start = copy_parameters(client)
        client.memory["global"] = start
        client.memory.setdefault("gradient", {n: torch.zeros_like(t) for n, t in start.items()})
        g = client.stored_weights("gradient")
        client.memory["gradient"] = {n: g[n] for n in start}  # in the order of the parameters
        super().local_update(client)
        theta = copy_parameters(client)
        client.memory["gradient"] = {n: g[n] - self.params.alpha * (theta[n] - start[n]) for n in start}

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        theta = list(client.model.parameters())
        linear = gradient_correction(theta, client.stored_weights("gradient").values())
        penalty = proximal(theta, client.stored_weights("global").values())
        return super().local_loss(client, batch) - linear + self.params.alpha * penalty

    def server_update(self, mean: Payload, share: float) -> None:
        weights = mean.under("weights")
        for name in dict(self.architecture.named_parameters()):
            average = weights[name]
            theta, drift = (self.server[f"{kind}/{name}"].to(average.device) for kind in ("weights", "drift"))
            drift = drift - share * (average - theta)  # h/α
            self.server[f"drift/{name}"], weights[name] = drift, average - drift
        self.server |= state_payload("weights", weights)
