"""Averaging whose server has the global model from the start: it updates the weights instead of replacing them."""

from collections.abc import Sequence

from fedchoir.methods.api import Exchange, Script
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import state_payload


class ServerModel(FedAvg):
    """The server starts from the clients' initial model, or from the average of their pretrained ones."""

    def setup(self) -> Script:
        yield from super().setup()
        self.server = dict(state_payload("weights", self.architecture.state_dict()))
        if self.params.pretrain_epochs:
            self.server = dict((yield Exchange(self.upload, aggregator=self.weighting)))

    def share(self, clients: Sequence[int]) -> float:
        """The share of some clients in the weighted mean over all: |S|/N where all weights are equal."""
        uniform = self.params.weighting == "uniform"
        weights = [1 if uniform else info.train for info in self.spec.clients]
        return sum(weights[k] for k in clients) / sum(weights)
