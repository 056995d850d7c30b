"""FedTGP. Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning, AAAI 2024."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedchoir.losses import class_prototypes, margin_contrast
from fedchoir.methods.api import Aggregator, Client, Field, Round, Settings, gather
from fedchoir.methods.fedproto import FedProto, FedProtoParams
from fedchoir.methods.server_training import prototype_rows, train_on_rows
from fedchoir.payload import Payload, sends
from fedchoir.utils.rng import generator, seeded


class FedTGPParams(FedProtoParams):
    prototype_weight: float = Field(0.1, ge=0, description="λ: weight of the distance to the global prototype")
    distance: Literal["mse", "squared", "euclidean"] = Field(
        "euclidean", description="distance to the global prototype: Euclidean as in the paper, or squared and divided "
        "by feature_dim (mse) as in the released code, whose λ is 10"
    )  # fmt: skip
    margin: float = Field(100.0, ge=0, description="τ: largest margin")
    gap: Literal["largest", "nearest"] = Field(
        "largest",
        description="margin before τ: the largest distance of two classes, or the largest distance of a class to its "
        "nearest one as in the released code",
    )
    server_epochs: int = Field(100, ge=0, description="S: epochs on the clients' prototypes at the server")
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server")
    server_batch: int = Field(10, ge=1, description="prototypes in a batch of the server")


class TrainablePrototypes(nn.Module):
    """A trainable vector per class and two layers that all classes share: û_k = W₂ relu(W₁ e_k + b₁) + b₂."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(classes, width))
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        return self.layers(self.vectors)


class FedTGP(FedProto):
    """FedProto whose global prototypes are trained at the server, to be separated by a margin.

    The server trains vectors and two layers that give û_k, by SGD on the prototypes P_i^k of all clients:

        −log( e^{−(φ(P, û_k) + δ)} / (e^{−(φ(P, û_k) + δ)} + Σ_{j≠k} e^{−φ(P, û_j)}) ),   φ the Euclidean distance
        δ = min(max_{j≠k} φ(Q_j, Q_k), τ),   Q_k the mean of the clients' prototypes of class k

    Clients are those of FedProto: local loss CE(z, y) + λ φ(h, û_y), and prediction by the nearest û_k.

    A class that no client has ever had is neither a target nor predicted. The paper does not give the server's
    learning rate and batch; they are those of the released code.
    """

    name = "fedtgp"
    title = "FedProto with prototypes that the server trains with an adaptive margin"
    paper = "Zhang et al., AAAI 2024"
    Params = FedTGPParams
    params: FedTGPParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server trains on each client's prototypes"

    @sends(prototypes="C d", owned="C:bool")
    def share_prototypes(self, client: Client) -> Payload:
        """The prototypes (C×d, zeros for a missing class) and which classes the client has (C)."""
        u, counts = self.local_prototypes(client)
        return Payload(prototypes=u, owned=counts > 0)

    def aggregator(self) -> Aggregator:
        return gather()

    def update_prototypes(self, r: Round, received: Any) -> None:
        p, (rows, classes) = self.params, prototype_rows(received)
        model, margin = self.trainable_prototypes(), self.adaptive_margin(rows, classes)
        train_on_rows(
            lambda h, y: margin_contrast(model(), h, y, margin), model.parameters(), (rows, classes),
            epochs=p.server_epochs, batch=p.server_batch, lr=p.server_lr,
            draw=generator(self.spec.seed, "prototypes", r.index),
        )  # fmt: skip
        self.server |= {f"trainable/{name}": t.detach() for name, t in model.state_dict().items()}
        seen = torch.zeros(len(self.spec.classes), dtype=torch.bool).index_fill(0, classes, value=True)
        self.server["present"] = self.server.get("present", seen) | seen
        self.server["prototypes"] = model().detach()

    def trainable_prototypes(self) -> TrainablePrototypes:
        """As the last round left them; at first from the seed."""
        with seeded(self.spec.seed, "prototypes"):
            model = TrainablePrototypes(len(self.spec.classes), self.feature_dim)
        if state := Payload(self.server).under("trainable"):
            model.load_state_dict(state)
        return model

    def adaptive_margin(self, rows: Tensor, classes: Tensor) -> float:
        """δ from the clients' prototypes (N×d) and their classes (N); 0 where there are fewer than two classes."""
        means, counts = class_prototypes(rows, classes, len(self.spec.classes))
        means = means[counts > 0]
        if len(means) < 2:
            return 0.0
        distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        if self.params.gap == "nearest":
            distances = distances.fill_diagonal_(torch.inf).amin(dim=1)
        return min(float(distances.max()), self.params.margin)
