"""FCCL. Huang, Ye and Du, Learn from Others and Be Yourself in Heterogeneous Federated Learning, CVPR 2022."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.teachers import frozen_batchnorm_stats
from fedchoir.losses import fccm, kd
from fedchoir.methods.api import Batch, Client, Field, PublicBatch, Round, Script, Settings, Step, Teacher
from fedchoir.methods.fccl_public_phase import FCCMParams
from fedchoir.methods.previous_teacher import PreviousTeacher
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError


class FCCLParams(FCCMParams):
    pretrain_epochs: int = Field(50, ge=0, description="epochs that make the intra-domain teacher, also the start")
    inter_weight: float = Field(1.0, ge=0, description="weight of the distillation from the previous round's model")
    intra_weight: float = Field(1.0, ge=0, description="weight of the distillation from the pretrained model")
    teacher_batchnorm: Literal["eval", "train"] = Field(
        "eval", description="BatchNorm mode of the teachers, and of the previous model where own_logits=previous"
    )
    own_logits: Literal["current", "previous"] = Field(
        "current",
        description="own slot of the consensus: the current model's logits, or the previous round's (released code; "
        "with fraction=1 and sync=batch)",
    )


class FCCL(PreviousTeacher):
    """Public phase: FCCM. Local phase: CE + KL to the previous round's model + KL to the pretrained one.

    ``client.memory["teacher"]`` is the paper's inter-domain teacher, ``"pretrained"`` its intra-domain teacher.
    """

    name = "fccl"
    title = "cross-correlation on public data, distillation from two teachers on private data"
    paper = "Huang et al., CVPR 2022"
    Params = FCCLParams
    supports_dp = True
    params: FCCLParams

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        given = f"fraction = {params.fraction:g}" if params.fraction < 1 else "sync = 'epoch'"
        given = "join_late" if spec.joins else given
        if self.params.own_logits == "previous" and (params.fraction < 1 or params.sync == "epoch" or spec.joins):
            raise UsageError(
                f"own_logits = 'previous' is not possible with {given}: a client takes its own logits out of "
                "the mean of all; set fraction to 1 and sync to batch, or own_logits to current"
            )

    def setup(self) -> Script:
        yield from super().setup()
        yield Step(self.store_pretrained)

    def public_phase(self, r: Round) -> Script:
        if self.params.use_fccm:
            yield from super().public_phase(r)

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        logits = consensus["logits"]
        if self.params.own_logits == "previous":
            logits = logits + self.previous_minus_own(client, batch) / len(self.spec.clients)
        client.public_step(batch, self.public_loss, logits=logits)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 2."""
        p = self.params
        return fccm(client.logits(batch.inputs), batch["logits"], p.off_diagonal, standardise=p.standardise)

    def previous_minus_own(self, client: Client, batch: PublicBatch) -> Tensor:
        """The released code's change of the consensus: a client's own share is that of its previous round's model."""
        previous = client.frozen_copy(client.stored_weights("teacher"))
        previous.train(self.params.teacher_batchnorm == "train")
        with torch.no_grad(), frozen_batchnorm_stats(previous):
            return previous(client.public_samples(batch)).float() - client.public_outputs(batch)[1]

    def local_update(self, client: Client) -> None:
        mode = self.params.teacher_batchnorm
        client.train(
            self.local_loss,
            teacher=Teacher(client.stored_weights("teacher"), batchnorm=mode),
            pretrained=Teacher(client.stored_weights("pretrained"), batchnorm=mode),
        )

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 7: CE and the dual distillation of eq. 4-6, at temperature 1."""
        z = client.logits(batch.inputs)
        return (
            client.cross_entropy(z, batch.labels)
            + self.params.inter_weight * kd(z, batch["teacher"], temperature=1.0)
            + self.params.intra_weight * kd(z, batch["pretrained"], temperature=1.0)
        )
