"""FedGen. Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.core.aggregation import weighted_mean
from fedchoir.losses import feature_diversity, kd
from fedchoir.losses._common import one_hot
from fedchoir.methods.api import Aggregator, Batch, ByName, Client, Exchange, Field, Round, Script
from fedchoir.methods.fedct_broadcast import Classifier
from fedchoir.methods.lg_fedavg import LGFedAvg, LGFedAvgParams, head_fields
from fedchoir.payload import Declaration, Payload, sends, state_payload
from fedchoir.utils.rng import generator, seeded

ROUNDING = 5e-5  # of a secure mean: a class with a smaller share counts as absent


class FedGenParams(LGFedAvgParams):
    generated_weight: float = Field(1.0, ge=0, description="α: weight of the loss of the head on generated features")
    latent_weight: float = Field(
        0.0, ge=0, description="β: weight of KL to the head's output on generated features of the same class"
    )
    generated_decay: float = Field(1.0, gt=0, le=1, description="factor on both weights after every round")
    noise_dim: int = Field(32, ge=1, description="width of the generator's noise")
    hidden_dim: int = Field(256, ge=1, description="hidden units of the generator")
    generator_steps: int = Field(50, ge=0, description="Adam steps of the generator at the server in each round")
    generator_batch: int = Field(128, ge=2, description="generated features in a step of the generator")
    generator_lr: float = Field(3e-4, gt=0, description="learning rate of the generator")
    diversity: float = Field(1.0, ge=0, description="weight of the generator's diversity loss")


class Generator(nn.Module):
    """Noise B×n and one-hot labels B×C → features B×d."""

    def __init__(self, noise: int, classes: int, hidden: int, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.layers(torch.cat([noise, labels], dim=1))


def fields(method: "FedGen") -> Declaration:
    return {**head_fields(method), "share": "C"}


class FedGen(LGFedAvg):
    """The server trains a generator of features for each class from the clients' heads; clients train on its features.

    With the labels' distribution p̂(y) over all clients, noise ε ~ N(0, I) and f = G(ε, y), the server minimises

        E CE(Σ_k n_k g_k(f) / Σ_k n_k, y) + diversity·exp(−mean_{ij} |f_i − f_j|·|ε_i − ε_j|²)

    over G, and averages the heads g_k. The loss of a client with extractor e and head g is

        CE(g(e(x)), y) + α·E CE(g(G(ε, ŷ)), ŷ) + β·KL(σ(g(G(ε, y))) ‖ σ(g(e(x)))),   ŷ ~ p̂

    The paper has no β; its released code has, with weights that decay, weights each client's loss by its number of
    samples of the class and draws labels uniformly. A mean of linear heads' logits is the output of the mean head, so
    the server needs no single client's head. Clients keep their extractors (the paper's partial parameter sharing),
    which end in one feature width. Features for a round are drawn once: one per private sample, and for β another. The
    server's Adam starts anew in every round.
    """

    name = "fedgen"
    title = "heads averaged; a generator of features that the server trains from them"
    paper = "Zhu et al., ICML 2021"
    Params = FedGenParams
    params: FedGenParams

    # -- server ----------------------------------------------------------------------------------------------------

    def update_head(self, r: Round) -> Script:
        average = yield Exchange(self.share_head_and_classes, aggregator=self.head_and_classes)
        share = average["share"].cpu()
        share = share.where(share > ROUNDING, torch.zeros_like(share))
        head = {name: t.cpu() for name, t in average.under("head").items()}
        trained = self.train_generator(head, share, r.index)
        self.server = {
            **state_payload("head", head), **state_payload("generator", trained.state_dict()), "share": share
        }  # fmt: skip

    @sends(fields)
    def share_head_and_classes(self, client: Client) -> Payload:
        """The head, and the share of each class in the private samples (C)."""
        return Payload({**self.share_head(client)}, share=client.class_counts() / len(client.private))

    def head_and_classes(self) -> Aggregator:
        sizes = [info.train for info in self.spec.clients]  # the mean is then the share in all samples
        return ByName({"head": self.weighting, "share": weighted_mean(sizes)})

    def new_generator(self) -> Generator:
        p = self.params
        with seeded(self.spec.seed, "generator"):
            return Generator(p.noise_dim, len(self.spec.classes), p.hidden_dim, self.feature_dim)

    def train_generator(self, head: dict[str, Tensor], share: Tensor, index: int) -> Generator:
        """The generator after a round's steps; without any samples it stays as it was."""
        p, made, classifier = self.params, self.new_generator(), Classifier(self.architecture)
        if known := Payload(self.server).under("generator"):
            made.load_state_dict(known)
        weights = {f"model.{name}": t for name, t in head.items()}
        optimizer = torch.optim.Adam(made.parameters(), lr=p.generator_lr)
        draw = generator(self.spec.seed, "generator", index)
        with torch.enable_grad():
            for _ in range(p.generator_steps if float(share.sum()) > 0 else 0):
                noise, labels = self.draw(share, p.generator_batch, draw)
                features = made(noise, one_hot(labels, len(share)).float())
                loss = cross_entropy(functional_call(classifier, weights, (features,)), labels)
                optimizer.zero_grad()
                (loss + p.diversity * feature_diversity(noise, features)).backward()
                optimizer.step()
        return made

    def draw(self, share: Tensor, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise and labels for so many features."""
        labels = torch.multinomial(share, size, replacement=True, generator=draw)
        return torch.randn(size, self.params.noise_dim, generator=draw), labels

    # -- clients ---------------------------------------------------------------------------------------------------

    def load_head(self, client: Client, received: Payload) -> None:
        super().load_head(client, received)
        client.memory["generator"], client.memory["share"] = received.under("generator"), received["share"]

    def local_update(self, client: Client) -> None:
        if "generator" not in client.memory or float(client.stored_tensor("share").sum()) <= 0:
            client.train(self.supervised_loss)
            return
        made = self.new_generator().to(client.device).eval()
        made.load_state_dict(client.stored_weights("generator"))
        share, own = client.stored_tensor("share").cpu(), client.private.labels
        noise, drawn = (t.to(client.device) for t in self.draw(share, len(own), client.generator("generated")))
        labels = {"generated": drawn} | ({"alike": own} if self.params.latent_weight else {})
        with torch.no_grad():
            features = {name: made(noise, one_hot(y, len(share)).float()) for name, y in labels.items()}
        client.train(self.local_loss, drawn=drawn, **features)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        p, z = self.params, client.logits(batch.inputs)
        factor = p.generated_decay**client.round if p.generated_decay < 1 else 1.0
        loss = client.cross_entropy(z, batch.labels)
        loss = loss + factor * p.generated_weight * cross_entropy(client.classify(batch["generated"]), batch["drawn"])
        if p.latent_weight:
            loss = loss + factor * p.latent_weight * kd(z, client.classify(batch["alike"]), temperature=1.0)
        return loss
