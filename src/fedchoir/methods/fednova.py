"""FedNova. Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020."""

from __future__ import annotations

from fedchoir.core.actions import Exchange, Round, Script, Step
from fedchoir.core.client import Client
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import MODEL, Payload, sends, state_payload


def normaliser(steps: int, momentum: float = 0.0) -> float:
    """‖a‖₁: how often the gradients of ``steps`` SGD steps count in the update that they add up to.

    A gradient goes on working through the momentum buffer: one with s steps to go counts (1 − ρˢ)/(1 − ρ) times.

    >>> normaliser(5), normaliser(3, momentum=0.5)
    (5.0, 4.25)
    """
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


class FedNova(FedAvg):
    """FedAvg of normalised updates: a client that takes more local steps does not pull the global model further.

    w ← w + τ_eff Σ p_i d_i with d_i = (w_i − w)/‖a_i‖₁ and τ_eff = Σ p_i ‖a_i‖₁; BatchNorm's statistics are averaged
    plainly. With Adam, for which the paper gives no ‖a‖₁, it is the number of steps.
    """

    name = "fednova"
    title = "FedAvg of updates normalised by the local steps"
    paper = "Wang et al., NeurIPS 2020"

    def setup(self) -> Script:
        """The server needs the model that clients start from: it derives it, or averages the pretrained ones."""
        yield from super().setup()
        self.server = dict(state_payload("weights", self.architecture.state_dict()))
        if self.params.pretrain_epochs:
            self.server = dict((yield Exchange(self.upload, aggregator=self.weighting)))

    def round(self, r: Round) -> Script:
        yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        mean = yield Exchange(self.contribute, aggregator=self.weighting)
        self.advance(mean)

    def local_update(self, client: Client) -> None:
        client.memory["start"] = {name: p.detach().clone() for name, p in client.model.named_parameters()}
        super().local_update(client)

    @sends(update=MODEL, norm="scalar")
    def contribute(self, client: Client) -> Payload:
        """d_i, with BatchNorm's statistics as they are, and ‖a_i‖₁."""
        start = client.stored_weights("start")
        p = self.params
        steps = client.steps_per_epoch() * p.epochs_of(client.index)
        norm = normaliser(steps, p.momentum if p.optimizer == "sgd" else 0.0)
        update = {
            name: (t - start[name]) / max(norm, 1.0) if name in start else t
            for name, t in client.model.state_dict().items()
        }
        return Payload(state_payload("update", update), scalars={"norm": norm})

    def advance(self, mean: Payload) -> None:
        """The server's step; the mean of the norms is τ_eff."""
        learned = dict(self.architecture.named_parameters())
        for name, d in mean.under("update").items():
            w = self.server[f"weights/{name}"].to(d.device)
            self.server[f"weights/{name}"] = w + mean.scalars["norm"] * d if name in learned else d
