"""Methods whose clients have a model of their own beside their copy of one global model."""

from copy import deepcopy

from torch import Tensor, nn

from fedchoir.methods.api import Batch, Client, Exchange, Method, Round, Script, Step
from fedchoir.models import Model
from fedchoir.payload import MODULE, Payload, sends, state_payload


class PersonalModel(Method):
    """``client.model`` is the client's own and is evaluated; the module ``global_model`` is averaged as in FedAvg.

    Both have one architecture and start from the same weights. One loss trains both: they share no parameters.
    """

    heterogeneous = False

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        return {"global_model": deepcopy(model)}

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        self.server = dict((yield Exchange(self.upload, aggregator=self.weighting)))

    @sends(global_model=MODULE)
    def upload(self, client: Client) -> Payload:
        return state_payload("global_model", client.modules["global_model"].state_dict())

    def download(self, client: Client, received: Payload) -> None:
        client.modules["global_model"].load_state_dict(received.under("global_model"))

    def global_loss(self, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy of the global model's copy."""
        return client.cross_entropy(client.run_module("global_model", batch.inputs), batch.labels)

    def supervised_loss(self, client: Client, batch: Batch) -> Tensor:
        """Pretraining trains both alike."""
        return super().supervised_loss(client, batch) + self.global_loss(client, batch)
