"""FedNova. Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020."""

from fedchoir.methods.api import Client, Exchange, Round, Script, Step
from fedchoir.methods.fedavg import copy_parameters
from fedchoir.methods.server_model import ServerModel
from fedchoir.payload import MODEL, Payload, sends, state_payload


def normalizer(steps: int, momentum: float = 0.0) -> float:
    """‖a‖₁: the sum of the weights with which the gradients of ``steps`` SGD steps enter the local update.

    With momentum ρ a gradient with s steps to go has weight (1 − ρˢ)/(1 − ρ).

    >>> normalizer(5), normalizer(3, momentum=0.5)
    (5.0, 4.25)
    """
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


class FedNova(ServerModel):
    """FedAvg of updates that are normalised by the number of local steps.

    w ← w + τ_eff Σ p_i d_i with d_i = (w_i − w)/‖a_i‖₁ and τ_eff = Σ p_i ‖a_i‖₁; BatchNorm's statistics are averaged
    as in FedAvg. For Adam, which the paper does not cover, ‖a‖₁ is the number of steps.
    """

    name = "fednova"
    title = "FedAvg of updates normalised by the local steps"
    paper = "Wang et al., NeurIPS 2020"
    streams = {"upload_update": "contribute"}  # frozen stream name
    changes = frozenset({"update"})

    def round(self, r: Round) -> Script:
        yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        self.server_update((yield Exchange(self.upload_update, aggregator=self.weighting)))

    def local_update(self, client: Client) -> None:
        client.memory["start"] = copy_parameters(client)
        super().local_update(client)

    @sends(update=MODEL, norm="scalar")
    def upload_update(self, client: Client) -> Payload:
        """d_i, with BatchNorm's statistics unchanged, and ‖a_i‖₁."""
        start = client.stored_weights("start")
        p = self.params
        steps = client.steps_per_epoch() * p.epochs_of(client.index)
        norm = normalizer(steps, p.momentum if p.optimizer == "sgd" else 0.0)
        update = {
            name: (t - start[name]) / max(norm, 1.0) if name in start else t
            for name, t in client.model.state_dict().items()
        }
        return Payload(state_payload("update", update), scalars={"norm": norm})

    def server_update(self, mean: Payload) -> None:
        """w ← w + τ_eff·mean(d_i); the mean of the norms is τ_eff."""
        learned = dict(self.architecture.named_parameters())
        for name, d in mean.under("update").items():
            w = self.server[f"weights/{name}"].to(d.device)
            self.server[f"weights/{name}"] = w + mean.scalars["norm"] * d if name in learned else d
