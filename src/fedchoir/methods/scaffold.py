"""SCAFFOLD. Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import gradient_correction
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step
from fedchoir.methods.fedavg import copy_parameters
from fedchoir.methods.fednova import normalizer
from fedchoir.methods.server_model import ServerModel
from fedchoir.payload import MODEL, Payload, sends, state_payload


class ScaffoldParams(Settings):
    optimizer: Literal["sgd"] = Field("sgd", description="control variates are gradients, derived from steps of SGD")
    server_lr: float = Field(1.0, gt=0, description="η_g: step of the server along the mean update")


class Scaffold(ServerModel):
    """FedAvg whose clients correct their gradients by control variates: c of the server, c_i of each client.

    A client starts at the global weights x and takes K local steps of learning rate η:

        y_i ← y_i − η (g_i(y_i) − c_i + c)

    Then (option II of the paper) c_i⁺ = c_i − c + (x − y_i)/(K η). It sends y_i and Δc_i = c_i⁺ − c_i. The server, with
    the share |S|/N of the clients that took part:

        x ← x + η_g mean(y_i − x),   c ← c + |S|/N mean(Δc_i)

    The correction is a linear term of the loss, ⟨y, c − c_i⟩. With momentum, K is the total weight of the gradients
    (FedNova's ‖a‖₁). The paper averages clients equally; with ``weighting = size`` the weights are those of FedAvg, and
    |S|/N is the participants' share of the samples. BatchNorm's statistics are averaged as in FedAvg.
    """

    name = "scaffold"
    title = "FedAvg with gradients corrected by control variates"
    paper = "Karimireddy et al., ICML 2020"
    Params = ScaffoldParams
    params: ScaffoldParams
    changes = frozenset({"control"})

    def setup(self) -> Script:
        yield from super().setup()
        zeros = {name: torch.zeros_like(p) for name, p in self.architecture.named_parameters()}
        self.server = {**Payload(self.server).only("weights"), **state_payload("control", zeros)}

    def round(self, r: Round) -> Script:
        yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        self.server_update((yield Exchange(self.upload, aggregator=self.weighting)), self.share(r.clients))

    def download(self, client: Client, received: Payload) -> None:
        super().download(client, received)
        client.memory["global_control"] = received.under("control")

    def local_update(self, client: Client) -> None:
        x, c = copy_parameters(client), client.stored_weights("global_control")
        client.memory.setdefault("control", {n: torch.zeros_like(t) for n, t in x.items()})
        own = client.stored_weights("control")
        client.memory["correction"] = {n: c[n] - own[n] for n in x}
        super().local_update(client)
        y, length = copy_parameters(client), self.step_length(client)
        client.memory["change"] = {n: (x[n] - y[n]) / length - c[n] for n in x}
        client.memory["control"] = {n: own[n] + t for n, t in client.stored_weights("change").items()}

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        correction = client.stored_weights("correction").values()
        return super().local_loss(client, batch) + gradient_correction(client.model.parameters(), correction)

    @sends(weights=MODEL, control=MODEL)
    def upload(self, client: Client) -> Payload:
        """y_i, and Δc_i with zeros for BatchNorm's statistics."""
        state = client.model.state_dict()
        change = client.stored_weights("change") if "change" in client.memory else {}  # not yet after pretraining
        control = {n: change[n] if n in change else torch.zeros_like(t) for n, t in state.items()}
        return Payload({**state_payload("weights", state), **state_payload("control", control)})

    def server_update(self, mean: Payload, share: float) -> None:
        weights, change = mean.under("weights"), mean.under("control")
        for name in dict(self.architecture.named_parameters()):
            x, c = (self.server[f"{kind}/{name}"].to(change[name].device) for kind in ("weights", "control"))
            weights[name] = x + self.params.server_lr * (weights[name] - x)
            self.server[f"control/{name}"] = c + share * change[name]
        self.server |= state_payload("weights", weights)

    def step_length(self, client: Client) -> float:
        """Learning rate × number of local steps."""
        p = self.params
        steps = max(client.steps_per_epoch() * p.epochs_of(client.index), 1)
        return p.lr(p.local_lr, client.round, client.rounds) * normalizer(steps, p.momentum)
