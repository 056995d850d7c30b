"""FedAvg. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from torch import Tensor

from fedchoir.methods.api import Client, Exchange, Method, Round, Script, Step
from fedchoir.payload import Payload


class FedAvg(Method):
    """Clients train from the global model; the server averages weights and buffers."""

    name = "fedavg"
    title = "weights averaged in every round"
    paper = "McMahan et al., AISTATS 2017"
    supports_dp = True
    heterogeneous = False
    begins_with_global = True

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        self.server = dict((yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)))

    def global_weights(self) -> dict[str, Tensor] | None:
        return Payload(self.server).under("weights") or None if self.params.eval_model == "global" else None


def copy_parameters(client: Client) -> dict[str, Tensor]:
    """A copy of the client's trainable weights, without BatchNorm's statistics."""
    return {name: p.detach().clone() for name, p in client.model.named_parameters()}
