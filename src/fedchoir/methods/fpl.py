"""FPL. Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedchoir.core.finch import cluster_means, finch
from fedchoir.losses import class_prototypes, cluster_contrast, prototype_distance
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step, gather
from fedchoir.methods.server_training import prototype_rows
from fedchoir.methods.shared_features import SharedFeatureParams, SharedFeatures
from fedchoir.payload import Payload, sends


class FPLParams(SharedFeatureParams):
    temperature: float = Field(0.02, gt=0, description="τ: temperature of the contrast to cluster prototypes")
    use_cpcl: bool = Field(True, description="cluster prototypes contrastive learning (CPCL) on/off")
    use_upcr: bool = Field(True, description="unbiased prototypes consistent regularisation (UPCR) on/off")
    distance: Literal["mse", "squared"] = Field(
        "mse",
        description="distance to the unbiased prototype: squared as in the paper, or divided by feature_dim as in the "
        "released code",
    )
    finch: Literal["first", "coarsest"] = Field(
        "first",
        description="partition of FINCH: the first one, as the paper describes it, or the coarsest one that is not a "
        "single cluster, as in the released code",
    )


class FPL(SharedFeatures):
    """Clients contrast features with clusters of all clients' prototypes and draw them to the unbiased prototypes.

    The server clusters the clients' mean features of each class k by FINCH; P_k are the means of the clusters. The
    unbiased prototype U_k is the mean of P_k: a domain with many clients counts as much as one with few. Local loss:

        CE(z, y) + CPCL + UPCR
        CPCL = −log( Σ_{c ∈ P_y} e^{cos(h, c)/τ} / Σ_{c ∈ P} e^{cos(h, c)/τ} ),   UPCR = ‖h − U_y‖²

    In the first round it is CE alone. The server averages models as FedAvg does, and the global model is evaluated.
    Clients with different architectures, which the paper does not have, exchange prototypes alone (all clients do with
    ``average = "never"``), and their own models are evaluated. Prototypes are computed in eval mode after the local
    phase; the released code takes the features of the last epoch.
    """

    name = "fpl"
    title = "clusters of class prototypes, contrast and regularisation against them"
    paper = "Huang et al., CVPR 2023"
    Params = FPLParams
    params: FPLParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server clusters the clients' prototypes"

    @property
    def averages_models(self) -> bool:
        return self.spec.homogeneous and self.params.average != "never"

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.receive, received=Payload(self.server))
        yield Step(self.local_update)
        prototypes = yield Exchange(self.share_prototypes, aggregator=gather, dims=self.dims)
        self.server = dict(self.clustered(prototypes))
        if self.averages_models:
            self.server |= yield Exchange(self.upload, aggregator=self.weighting)

    def global_weights(self) -> dict[str, Tensor] | None:
        return Payload(self.server).under("weights") or None if self.params.eval_model == "global" else None

    @sends(prototypes="C d", owned="C:bool")
    def share_prototypes(self, client: Client) -> Payload:
        """The mean features of the classes (C×d, zeros for a missing class) and which the client has (C)."""
        classes = client.model.num_classes
        u, counts = class_prototypes(client.predict_private("features"), client.private.labels, classes)
        return Payload(prototypes=u, owned=counts > 0)

    def clustered(self, payloads: Mapping[int, Payload]) -> Payload:
        """The cluster prototypes of all classes (J×d) and their classes (J)."""
        rows, classes = prototype_rows(payloads)
        coarsest = self.params.finch == "coarsest"
        found = {int(k): rows[classes == k] for k in classes.unique()}
        means = {k: cluster_means(x, finch(x, coarsest=coarsest)) for k, x in found.items()}
        labels = [torch.full((len(u),), k) for k, u in means.items()]
        return Payload(clusters=torch.cat([rows[:0], *means.values()]), classes=torch.cat([classes[:0], *labels]))

    def receive(self, client: Client, received: Payload) -> None:
        """Cluster prototypes, unbiased prototypes and, where models are averaged, the global weights."""
        if self.averages_models:
            self.download(client, received)
        clusters, classes = received["clusters"], received["classes"]
        unbiased, count = class_prototypes(clusters, classes, client.model.num_classes)
        # a cluster has two clients or more; with one size in all rounds a captured training step stays valid
        free = len(unbiased) * max(1, len(self.spec.clients) // 2) - len(clusters)
        client.memory["clusters"] = pad(clusters, (0, 0, 0, free))
        client.memory["classes"] = pad(classes, (0, free), value=-1)
        client.memory["unbiased"], client.memory["present"] = unbiased, count > 0

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss if "clusters" in client.memory else self.supervised_loss)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        stored, p = client.stored_tensor, self.params
        loss = client.cross_entropy(z, batch.labels)
        if p.use_cpcl:
            loss = loss + cluster_contrast(h, batch.labels, stored("clusters"), stored("classes"), p.temperature)
        if p.use_upcr:
            loss = loss + prototype_distance(h, batch.labels, stored("unbiased"), stored("present"), p.distance)
        return loss
