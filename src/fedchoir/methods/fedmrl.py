"""FedMRL. Yi et al., Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024."""

from typing import Literal

import torch
from torch import Tensor, nn

from fedchoir.methods.api import Batch, Client, Exchange, Field, Method, Round, Script, Settings, Step
from fedchoir.models import Model, build
from fedchoir.models.projection import ProjectedModel
from fedchoir.models.registry import SMALL_MODELS
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class FedMRLParams(Settings):
    shared_model: str = Field(
        "auto", description="architecture of the small model that all clients share; auto: as in fml"
    )
    shared_dim: int = Field(128, ge=1, description="d₁: width of the small model's features and of the coarse features")
    own_weight: float = Field(1.0, ge=0, description="m: weight of the own head's loss on all fused features")
    shared_weight: float = Field(1.0, ge=0, description="m: weight of the shared head's loss on the coarse features")
    keep_projector: bool = Field(
        True, description="false: the trained projector is discarded after every round, as in HtFLlib's client"
    )
    average: Literal["auto", "before-local", "after-local", "never"] = Field(
        "never", description="parameter averaging of the clients' own models if they are alike"
    )


class FusedModel(nn.Module):
    """A client's own model on features that are fused with those of the small shared model."""

    def __init__(self, own: Model, shared: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.own, self.shared, self.projector = own, shared, projector

    def both(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the own head and of the shared head."""
        assert isinstance(self.shared, ProjectedModel)
        fused = self.projector(torch.cat([self.shared.features(inputs), self.own.features(inputs)], dim=1))
        coarse, fine = fused[:, : self.shared.feature_dim], fused[:, : self.own.feature_dim]
        return self.own.classify(fine), self.shared.classify(coarse)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.both(inputs)[0]


class FedMRL(Method):
    """Features of an own and a small shared model are fused into nested ones; the shared model is averaged.

    With features g (d₁) of the shared model and f (d₂) of the client's own, and a personal projector P:

        R = P([g, f]),   L = m·CE(own head(R), y) + m′·CE(shared head(R[:d₁]), y)

    All three are trained by L. The first d₁ entries of R are coarse features that the shared head must be able to use;
    all d₂ of them are the fine ones (Matryoshka representation). The server averages the shared model, extractor and
    head, weighted by the number of samples. Prediction: the own head on R. Where d₂ < d₁, R has d₁ entries and the own
    head uses the first d₂.

    The small model's own features are projected linearly to d₁. The authors' released code stores the small models of
    a round without copying them, so its average is the model of the last client; here it is an average. HtFLlib's
    client trains its projector but never saves it: ``keep_projector = false``.
    """

    name = "fedmrl"
    title = "own and shared features fused into nested ones; the small shared model is averaged"
    paper = "Yi et al., NeurIPS 2024"
    Params = FedMRLParams
    params: FedMRLParams

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        spec, width = self.spec, self.params.shared_dim
        with seeded(spec.seed, "shared model"):  # equal initial weights at all clients
            small = build(self.small_name, len(spec.classes), spec.inputs)
            shared = ProjectedModel(small, width)
        projector = nn.Linear(width + model.feature_dim, max(width, model.feature_dim))
        return {"shared_model": shared, "projector": projector}

    @property
    def small_name(self) -> str:
        name = self.params.shared_model
        return SMALL_MODELS[self.spec.inputs.modality] if name == "auto" else name

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download_shared_model, received=Payload(self.server))
        if self.averages("before-local"):
            yield from self.average()
        yield Step(self.local_update)
        if self.averages("after-local"):
            yield from self.average()
        self.server = dict((yield Exchange(self.upload_shared_model, aggregator=self.weighting)))

    @sends(shared_model=MODULE)
    def upload_shared_model(self, client: Client) -> Payload:
        return state_payload("shared_model", client.modules["shared_model"].state_dict())

    def download_shared_model(self, client: Client, received: Payload) -> None:
        client.modules["shared_model"].load_state_dict(received.under("shared_model"))

    def local_update(self, client: Client) -> None:
        projector = client.modules["projector"]
        if not self.params.keep_projector and "projector" not in client.memory:
            client.memory["projector"] = projector.state_dict()
        super().local_update(client)
        if not self.params.keep_projector:
            projector.load_state_dict(client.stored_weights("projector"))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        p = self.params
        with client.autocast():
            own, shared = self.fused(client).both(batch.inputs)
        own_loss, shared_loss = (client.cross_entropy(z.float(), batch.labels) for z in (own, shared))
        return p.own_weight * own_loss + p.shared_weight * shared_loss

    def fused(self, client: Client) -> FusedModel:
        return FusedModel(client.model, client.modules["shared_model"], client.modules["projector"])

    def predict(self, client: Client, inputs: Tensor) -> Tensor:
        with client.autocast():
            return self.fused(client)(inputs).float()

    def inference_module(self, model: Model, modules: nn.ModuleDict) -> nn.Module:
        return FusedModel(model, modules["shared_model"], modules["projector"])
