"""FedDF. Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedchoir.core.aggregation import GroupMean
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client, Exchange, Field, PublicBatch, Round, Script, Settings, Step
from fedchoir.methods.previous_teacher import PreviousTeacher
from fedchoir.models.spec import ModelSpec
from fedchoir.payload import MODEL, Payload, sends
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class FedDFParams(Settings):
    fusion: Literal["groups", "clients"] = Field(
        "groups",
        description="groups: the average of the clients with one architecture learns from the models of all (FedDF's "
        "Algorithm 3); clients: every client's own model learns from the mean of the current ones (FCCL+'s tables)",
    )


class FedDF(PreviousTeacher):
    """Public phase: clients with one architecture are averaged, and each average learns KL(σ(z̄) ‖ σ(z)) from z̄, the
    mean logits of all clients' models before averaging, temperature 1.

    Clients with one architecture have one initial model. A client whose architecture nobody else has sends zeros in
    place of weights; where all architectures differ, no weights are sent.
    """

    name = "feddf"
    title = "averages within each architecture, ensemble distillation on public data (KL)"
    paper = "Lin et al., NeurIPS 2020"
    Params = FedDFParams
    supports_dp = True
    params: FedDFParams

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        if params.robust != "mean" and self.fuses and not spec.homogeneous:
            raise UsageError(
                f"robust = {params.robust!r} is not possible with fusion = 'groups', which takes means of few clients; "
                "set fusion to clients"
            )

    def models_prevent_sums(self) -> str:
        several = self.fuses and not self.spec.homogeneous
        return "groups of clients are averaged, each of its own architecture; set fusion to clients" if several else ""

    # -- groups of one architecture --------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[str]:
        """The architecture of every client."""
        return [ModelSpec.parse(info.model).architecture for info in self.spec.clients]

    @cached_property
    def fuses(self) -> bool:
        """Whether two clients have one architecture, and the server knows all of them."""
        wanted = self.params.fusion == "groups" and self.params.average != "never"
        remote = any(ModelSpec.parse(info.model).kind == "remote" for info in self.spec.clients)
        shared = len(set(self.groups)) < len(self.groups)
        return wanted and shared and (self.spec.homogeneous or not remote)

    @cached_property
    def initial(self) -> dict[str, Mapping[str, Tensor]]:
        """The initial weights of each architecture."""
        made: dict[str, Mapping[str, Tensor]] = {}
        for name in dict.fromkeys(self.groups):
            with seeded(self.spec.seed, "model", "shared"):
                model = self.build_model(name)
                if self.params.dp_noise:
                    without_batchnorm(model)
            made[name] = model.state_dict()
        return made

    def model_shapes(self, client: int) -> Mapping[str, Tensor] | None:
        several = self.fuses and not self.spec.homogeneous
        return self.initial[self.groups[client]] if several else super().model_shapes(client)

    # -- a round ---------------------------------------------------------------------------------------------------

    @property
    def uses_teacher(self) -> bool:
        return self.params.fusion == "groups"

    def averages(self, when: str) -> bool:
        return self.params.fusion == "clients" and super().averages(when)

    def setup(self) -> Script:
        if self.fuses and not self.spec.homogeneous:
            weights = {g: Payload({f"weights/{n}": t for n, t in state.items()}) for g, state in self.initial.items()}
            yield Step(self.download, received=self.for_groups({k: weights[g] for k, g in enumerate(self.groups)}))
        yield from super().setup()

    def public_phase(self, r: Round) -> Script:
        if self.fuses:
            if self.spec.homogeneous:
                yield from self.average()
            else:
                sizes = None if self.params.weighting == "uniform" else [info.train for info in self.spec.clients]
                fused = yield Exchange(self.upload, aggregator=lambda: GroupMean(self.groups, sizes))
                yield Step(self.download, received=self.for_groups(fused))
        yield from super().public_phase(r)

    def for_groups(self, weights: Mapping[int, Payload]) -> dict[int, Payload]:
        """Nothing for a client whose architecture nobody else has: it goes on with its own model."""
        return {k: Payload() if self.alone(k) else p for k, p in weights.items()}

    def alone(self, client: int) -> bool:
        return self.groups.count(self.groups[client]) == 1

    @sends(weights=MODEL)
    def upload(self, client: Client) -> Payload:
        weights = super().upload(client)
        return Payload({n: torch.zeros_like(t) for n, t in weights.items()}) if self.alone(client.index) else weights

    def download(self, client: Client, received: Payload) -> None:
        if received:
            super().download(client, received)

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        if self.params.fusion == "clients":
            return super().share(client, batch)
        teacher = client.frozen_copy(client.stored_weights("teacher"))
        return Payload(logits=teacher(client.public_samples(batch)).float())

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return kd(client.logits(batch.inputs), batch["logits"], temperature=1.0)
