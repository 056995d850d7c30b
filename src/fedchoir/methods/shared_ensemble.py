"""A small model that all clients share and average beside their own; both predict together."""

from torch import Tensor, nn

from fedchoir.methods.api import Client, Exchange, Field, Method, Script, Settings, Step, mean
from fedchoir.models import Model, build
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class SharedEnsembleParams(Settings):
    shared_model: str = Field(
        "", description="a small model that all clients share and average, such as simple_cnn@16; empty: none"
    )


class Ensemble(nn.Module):
    """The log of the mean of two models' probabilities."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, inputs: Tensor) -> Tensor:
        return ((self.one(inputs).softmax(dim=1) + self.two(inputs).softmax(dim=1)) / 2).log()


class SharedEnsemble(Method):
    """With ``shared_model`` every client also trains a small model g of one architecture, on the same samples, and the
    server averages it after every round. The prediction is (σ(z(x)) + σ(g(x))) / 2."""

    Params = SharedEnsembleParams
    params: SharedEnsembleParams

    @property
    def streams(self) -> dict[str, str]:  # type: ignore[override]
        return {**super().streams, "upload_shared_model": "lend"}  # frozen stream name

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        if not self.params.shared_model:
            return {}
        spec = self.spec
        with seeded(spec.seed, "lead"):  # frozen stream name; equal initial weights at all clients
            return {"shared_model": build(self.params.shared_model, len(spec.classes), spec.inputs)}

    def send_shared_model(self) -> Script:
        """At the start of a round, for clients that joined or missed the last one, and after it."""
        if weights := Payload(self.server).only("shared_model"):
            yield Step(self.download_shared_model, received=weights)

    def average_shared_model(self) -> Script:
        if self.params.shared_model:
            self.server |= yield Exchange(self.upload_shared_model, aggregator=mean)
            yield from self.send_shared_model()

    @sends(shared_model=MODULE)
    def upload_shared_model(self, client: Client) -> Payload:
        return state_payload("shared_model", client.modules["shared_model"].state_dict())

    def download_shared_model(self, client: Client, received: Payload) -> None:
        client.modules["shared_model"].load_state_dict(received.under("shared_model"))

    def predict(self, client: Client, images: Tensor) -> Tensor:
        """With a shared model, the log of the mean of both models' probabilities."""
        logits = super().predict(client, images)
        if not self.params.shared_model:
            return logits
        both = (logits.softmax(dim=1) + client.run_module("shared_model", images).softmax(dim=1)) / 2
        return both.log()

    def inference_module(self, model: Model, modules: nn.ModuleDict) -> nn.Module:
        return Ensemble(model, modules["shared_model"]) if self.params.shared_model else model
