"""LG-FedAvg. Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
2020."""

from typing import Literal

from torch import Tensor, nn

from fedchoir.methods.api import Client, Exchange, Field, Round, Script, Step
from fedchoir.methods.server_training import missed_last_round
from fedchoir.methods.shared_features import SharedFeatureParams, SharedFeatures
from fedchoir.models import Model
from fedchoir.models.projection import ProjectedModel
from fedchoir.payload import Declaration, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class LGFedAvgParams(SharedFeatureParams):
    tested_head: Literal["global", "own"] = Field(
        "global", description="head for evaluation: the global one of this round, or the client's own after training"
    )


def head_state(model: Model) -> dict[str, Tensor]:
    """The weights and buffers of a model's head, by their names in its state dict."""
    state = model.state_dict(keep_vars=True)
    head = {id(t) for module in model.head_modules() for t in module.state_dict(keep_vars=True).values()}
    return {name: t.detach() for name, t in state.items() if id(t) in head}


def head_fields(method: "LGFedAvg") -> Declaration:
    """The declaration of a head: the same for all clients."""
    return {
        f"head/{name}": f"{' '.join(map(str, t.shape))}:{str(t.dtype).removeprefix('torch.')}"
        for name, t in head_state(method.architecture).items()
    }


class LGFedAvg(SharedFeatures):
    """FedAvg of the heads alone: clients keep their feature extractors.

    A client's model is g(f_i(x)) with its own extractor f_i (the local representation) and the head g of all clients:

        (f_i, g_i) ← local epochs on CE from (f_i, g);   g ← Σ_i n_i g_i / Σ_i n_i

    Here g is the linear head on the projected features and has equal initial weights at all clients. In the paper's
    experiments, with one architecture, g has more of the last layers, and training starts from a model of FedAvg. Its
    adversarial loss for fair representations is not included.
    """

    name = "lg-fedavg"
    title = "heads averaged, feature extractors stay at the clients"
    paper = "Liang et al., 2020"
    supports_dp = True
    Params = LGFedAvgParams
    params: LGFedAvgParams

    def build_model(self, name: str) -> Model:
        model = super().build_model(name)
        if isinstance(model, ProjectedModel):  # otherwise all clients have one architecture and equal weights
            with seeded(self.spec.seed, "head"):
                model.head = nn.Linear(model.feature_dim, model.num_classes)
        return model

    def round(self, r: Round) -> Script:
        test_global = self.params.tested_head == "global"
        if self.server and (not test_global or missed_last_round(self, r)):
            yield Step(self.load_head, received=Payload(self.server))
        yield Step(self.local_update)
        yield from self.update_head(r)
        if test_global:  # for the evaluation of this round and the training of the next
            yield Step(self.load_head, received=Payload(self.server))

    def update_head(self, r: Round) -> Script:
        self.server = dict((yield Exchange(self.share_head, aggregator=self.weighting)))

    @sends(head_fields)
    def share_head(self, client: Client) -> Payload:
        return state_payload("head", head_state(client.model))

    def load_head(self, client: Client, received: Payload) -> None:
        client.model.load_state_dict(received.under("head"), strict=False)
