"""FCCL. Huang, Ye and Du, Learn from Others and Be Yourself in Heterogeneous Federated Learning, CVPR 2022."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.actions import PublicBatch, Round, Script, Step
from fedchoir.core.client import Client, Teacher, frozen_batchnorm_stats
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.losses import fccm, kd
from fedchoir.methods.base import PublicMethod
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError


class FCCLParams(Settings):
    pretrain_epochs: int = Field(50, ge=0, description="epochs that make the intra-domain teacher, also the start")
    off_diagonal: float = Field(0.0051, ge=0, description="λ of eq. 2: weight of the off-diagonal entries")
    standardise: Literal["biased", "unbiased"] = Field(
        "biased",
        description="std of the logits' columns: biased with eps, or unbiased without (released code)",
    )
    use_fccm: bool = Field(True, description="public phase on/off")
    inter_weight: float = Field(1.0, ge=0, description="weight of the distillation from the previous round's model")
    intra_weight: float = Field(1.0, ge=0, description="weight of the distillation from the pretrained model")
    teacher_batchnorm: Literal["eval", "train"] = Field("eval", description="BatchNorm mode of the teachers")
    own_logits: Literal["current", "previous"] = Field(
        "current",
        description="own slot of the consensus: the current model's logits, or the previous round's (released code; "
        "with fraction=1 and sync=batch)",
    )


class FCCL(PublicMethod):
    """Public phase: FCCM. Local phase: CE + KL to the previous round's model + KL to the pretrained one."""

    name = "fccl"
    title = "cross-correlation on public data, two teachers at home"
    paper = "Huang et al., CVPR 2022"
    Params = FCCLParams
    supports_dp = True
    params: FCCLParams
    profiles = {
        "official": {
            "public_batch": 512, "local_batch": 256, "public_drop_last": True, "public_augment": "fccl",
            "teacher_batchnorm": "train", "standardise": "unbiased", "own_logits": "previous", "average": "after-local",
        },
        "official:digits": {"local_epochs": (40, 35, 3, 4)},
        "official:office-home": {"local_epochs": 10},
    }  # fmt: skip

    def __init__(self, params: Settings, task: FederationSpec) -> None:
        super().__init__(params, task)
        if self.params.own_logits == "previous" and (params.fraction < 1 or params.sync == "epoch"):
            given = f"fraction = {params.fraction:g}" if params.fraction < 1 else "sync = 'epoch'"
            raise UsageError(
                f"own_logits = 'previous' is not possible with {given}: a client takes its own answer out of the mean "
                "of all; set fraction to 1 and sync to batch, or own_logits to current"
            )

    def setup(self) -> Script:
        yield from super().setup()
        yield Step(self.remember_pretrained)

    def round(self, r: Round) -> Script:
        yield Step(self.remember)
        yield from super().round(r)

    def public_phase(self, r: Round) -> Script:
        if self.params.use_fccm:
            yield from super().public_phase(r)

    def remember_pretrained(self, client: Client) -> None:
        client.memory["intra"] = client.snapshot()

    def remember(self, client: Client) -> None:
        """The inter-domain teacher is the model with which the client ended the previous round."""
        client.memory["inter"] = client.snapshot()

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        logits = consensus["logits"]
        if self.params.own_logits == "previous":
            logits = logits + self.previous_minus_own(client, batch) / len(self.spec.clients)
        client.public_step(batch, self.public_loss, logits=logits)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        return fccm(
            client.logits(batch.images),
            batch["logits"],
            self.params.off_diagonal,
            standardise=self.params.standardise,
        )

    def previous_minus_own(self, client: Client, batch: PublicBatch) -> Tensor:
        """What the released code changes in the consensus: a client's slot holds its previous round's model."""
        previous = client.frozen_copy(client.stored_weights("inter")).train()
        with torch.no_grad(), frozen_batchnorm_stats(previous):
            return previous(client.public_samples(batch)).float() - client.public_outputs(batch)[1]

    def local_update(self, client: Client) -> None:
        mode = self.params.teacher_batchnorm
        client.train(
            self.local_loss,
            inter=Teacher(client.stored_weights("inter"), batchnorm=mode),
            intra=Teacher(client.stored_weights("intra"), batchnorm=mode),
        )

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z = client.logits(batch.images)
        return (
            cross_entropy(z, batch.labels)
            + self.params.inter_weight * kd(z, batch["inter"], temperature=1.0)
            + self.params.intra_weight * kd(z, batch["intra"], temperature=1.0)
        )
