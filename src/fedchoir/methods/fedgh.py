"""FedGH. Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM Multimedia 2023."""

from typing import Literal

from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.losses import class_prototypes
from fedchoir.methods.api import Client, Exchange, Field, Round, Script, Settings, gather
from fedchoir.methods.fedct_broadcast import Classifier
from fedchoir.methods.lg_fedavg import LGFedAvg, LGFedAvgParams, head_state
from fedchoir.methods.server_training import prototype_rows, train_on_rows
from fedchoir.payload import Payload, sends, state_payload
from fedchoir.utils.rng import generator


class FedGHParams(LGFedAvgParams):
    tested_head: Literal["global", "own"] = Field(
        "own", description="head for evaluation: the global one of this round, or the client's own after training"
    )
    server_lr: float = Field(0.01, gt=0, description="η: learning rate of the global head at the server")
    server_epochs: int = Field(1, ge=0, description="passes over the clients' prototypes in each round")
    server_batch: int = Field(1, ge=1, description="prototypes in a step of the server")


class FedGH(LGFedAvg):
    """The server trains one head on the class prototypes of all clients; it replaces the clients' heads.

    A client trains from the global head g and its own extractor f_i by CE, then sends its mean feature of each class,
    P_i^k = mean of f_i(x) over its samples of class k. The server takes a step for each of them, in random order:

        g ← g − η ∇ CE(g(P_i^k), k)

    The paper goes through clients and classes in order. Its released code calls an optimiser of the client's model
    after the server's backward pass, so that the global head keeps its initial weights in all rounds
    (``server_epochs = 0``, profile official), and tests clients before they receive a head (``tested_head = own``).
    """

    name = "fedgh"
    title = "one head trained at the server on the clients' class prototypes"
    paper = "Yi et al., ACM Multimedia 2023"
    Params = FedGHParams
    params: FedGHParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server trains on each client's prototypes"

    def update_head(self, r: Round) -> Script:
        prototypes = yield Exchange(self.share_prototypes, aggregator=gather, dims=self.dims)
        self.server = dict(self.trained_head(r, *prototype_rows(prototypes)))

    @sends(prototypes="C d", owned="C:bool")
    def share_prototypes(self, client: Client) -> Payload:
        """The prototypes (C×d, zeros for a missing class) and which classes the client has (C)."""
        classes = client.model.num_classes
        u, counts = class_prototypes(client.predict_private("features"), client.private.labels, classes)
        return Payload(prototypes=u, owned=counts > 0)

    def trained_head(self, r: Round, rows: Tensor, classes: Tensor) -> Payload:
        """The global head after SGD on prototypes (N×d) and their classes (N)."""
        p, classifier = self.params, Classifier(self.architecture)
        state = Payload(self.server).under("head") or head_state(self.architecture)
        head = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in state.items()}
        weights = {f"model.{name}": t for name, t in head.items()}

        def loss(h: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(classifier, weights, (h,)), y)

        train_on_rows(
            loss, [t for t in head.values() if t.requires_grad], (rows, classes), epochs=p.server_epochs,
            batch=p.server_batch, lr=p.server_lr, draw=generator(self.spec.seed, "head", r.index),
        )  # fmt: skip
        return state_payload("head", {name: t.detach() for name, t in head.items()})
