"""FedBYOL: BYOL with the online networks averaged every round (the baseline of Zhuang et al., ICLR 2022)."""

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fedchoir.methods.api import Client, Exchange, Field, Round, Script, Step
from fedchoir.methods.fedfoa_exchange import BANK
from fedchoir.methods.self_supervised import SelfSupervised, SelfSupervisedParams
from fedchoir.methods.ssl.objectives import Target, online_parameters
from fedchoir.models import Model
from fedchoir.payload import MODEL, MODULE, Payload, sends, state_payload
from fedchoir.utils.errors import UsageError


class FedBYOLParams(SelfSupervisedParams):
    target_network: Literal["global", "local"] = Field(
        "global",
        description="BYOL's target network after a download: the online one, or its own (released code)",
    )


class FedBYOL(SelfSupervised):
    """The server averages online encoder and predictor; clients continue from the average, target network included
    unless it stays local."""

    name = "fedbyol"
    title = "self-supervised, online encoder and predictor averaged"
    paper = "Zhuang et al., ICLR 2022 (baseline)"
    heterogeneous = False
    Params = FedBYOLParams
    params: FedBYOLParams

    def round(self, r: Round) -> Script:
        if average := self.averaged():
            yield Step(self.download, received=Payload(average))
        yield from self.receive_correlations(r)
        yield Step(self.local_update)
        self.server |= dict((yield Exchange(self.upload, aggregator=self.weighting)))
        yield from self.share_correlations()

    def train(self, client: Client, epochs: int, phase: str) -> None:
        client.memory.setdefault("trained", torch.ones(()))
        super().train(client, epochs, phase)

    def averaged(self) -> dict[str, Tensor]:
        """The averaged networks, without FedFoA's memory bank."""
        return {name: t for name, t in self.server.items() if not name.startswith(BANK)}

    def global_weights(self) -> dict[str, Tensor] | None:
        return Payload(self.server).under("weights") or None if self.params.eval_model == "global" else None

    @sends(weights=MODEL, calibration=MODULE, projector=MODULE, predictor=MODULE)
    def upload(self, client: Client) -> Payload:
        states = [state_payload(name, module.state_dict()) for name, module in online(client).items()]
        return Payload({name: t for state in states for name, t in state.items()})

    def download(self, client: Client, received: Payload) -> None:
        """Continue from the average. The target network of a client that has not trained yet follows in any case."""
        new = "trained" not in client.memory
        self.load_average(client, received)
        if "target" in client.modules and (new or self.params.target_network == "global"):
            cast(Target, client.modules["target"]).copy(online_parameters(client))

    def load_average(self, client: Client, received: Payload) -> None:
        """Replace the online networks."""
        for name, module in online(client).items():
            module.load_state_dict(received.under(name))


def online(client: Client) -> dict[str, nn.Module]:
    """The online networks by their name in the payload; SimCLR has no predictor."""
    names = [name for name in ("calibration", "projector", "predictor") if name in client.modules]
    return {"weights": client.model, **{name: client.modules[name] for name in names}}


@torch.no_grad()
def divergence(model: Model, weights: Mapping[str, Tensor]) -> Tensor:
    """‖w − w'‖ of the encoder's layers, averaged over the layers; a scalar on the device."""
    layers = [name for name, p in model.named_parameters() if p.dim() > 1 and not name.startswith("head.")]
    if not layers:
        raise UsageError(f"fedu and fedema compare the layers before the head, and model '{model.name}' has none")
    own = dict(model.named_parameters())
    return torch.stack([torch.dist(own[name], weights[name]) for name in layers]).mean()
