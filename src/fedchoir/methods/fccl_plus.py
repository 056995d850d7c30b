"""FCCL+. Huang, Ye, Shi and Du, Generalizable Heterogeneous Federated Cross-Correlation and Instance Similarity
Learning, TPAMI 2023."""

from typing import Any, Literal

from torch import Tensor

from fedchoir.losses import ewc, fntd, kd
from fedchoir.methods.api import Batch, Client, Field, Script, Step, Teacher
from fedchoir.methods.fccl_public_phase import FCCLPublicParams, FCCLPublicPhase
from fedchoir.methods.fisher import diagonal_fisher

Regulariser = Literal["fntd", "kd", "dual", "ewc", "none"]


class FCCLPlusParams(FCCLPublicParams):
    temperature: float = Field(3.0, gt=0, description="τ of eq. 8 and 13: temperature of FNTD and KD")
    regulariser: Regulariser = Field(
        "fntd", description="local: FNTD, KD (eq. 10), dual (FCCL's two teachers, eq. 19), EWC (Table 16) or none"
    )
    fntd_form: Literal["masked", "renormalised"] = Field(
        "masked",
        description="masked: eq. 13, over all classes, target left out; renormalised: as in FedNTD, and where there "
        "are at most τ classes, because the masked form would not prefer the right one",
    )
    kd_share: float = Field(0.0, ge=0, le=1, description="share of the local epochs, the first, with KD (Table 17)")
    ewc_weight: float = Field(0.1, ge=0, description="λ of EWC (Table 16)")
    teacher: Literal["previous", "updated"] = Field(
        "previous", description="teacher θ^{e−1}, after the last round, or θ^e, after the public phase (Fig. 9)"
    )
    teacher_batchnorm: Literal["eval", "train"] = Field("eval", description="BatchNorm mode of the teacher")


class FCCLPlus(FCCLPublicPhase):
    """Public phase: FCCM + ω·FISL. Local phase: CE + FNTD against the model of the previous round."""

    name = "fccl+"
    title = "cross-correlation and instance similarity on public data, non-target distillation on private data"
    paper = "Huang et al., TPAMI 2023"
    Params = FCCLPlusParams
    supports_dp = True
    params: FCCLPlusParams

    @classmethod
    def dp_obstacle(cls, params: Any) -> str:
        return "EWC's Fisher information is not a function of single samples" if params.regulariser == "ewc" else ""

    def setup(self) -> Script:
        yield from super().setup()
        if self.params.regulariser == "dual":
            yield Step(self.store_pretrained)

    def local_update(self, client: Client) -> None:
        p = self.params
        if p.teacher == "updated":
            self.store_teacher(client)
        if p.regulariser == "none":
            return super().local_update(client)
        if p.regulariser == "ewc":
            client.memory["fisher"] = diagonal_fisher(client, client.stored_weights("teacher"))
            return client.train(self.ewc_loss)
        teacher = Teacher(client.stored_weights("teacher"), batchnorm=p.teacher_batchnorm)
        if p.regulariser == "dual":
            pretrained = Teacher(client.stored_weights("pretrained"), batchnorm=p.teacher_batchnorm)
            return client.train(self.dual_loss, teacher=teacher, pretrained=pretrained)
        epochs = p.epochs_of(client.index)
        kd_epochs = epochs if p.regulariser == "kd" else round(p.kd_share * epochs)
        client.train(self.kd_loss, epochs=kd_epochs, teacher=teacher)
        client.train(self.fntd_loss, epochs=epochs - kd_epochs, first=kd_epochs, teacher=teacher)

    def fntd_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 14."""
        z = client.logits(batch.inputs)
        form = self.params.fntd_form if z.shape[1] > self.params.temperature else "renormalised"
        distance = fntd(z, batch["teacher"], batch.labels, self.params.temperature, form)
        return client.cross_entropy(z, batch.labels) + distance

    def kd_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 10."""
        z = client.logits(batch.inputs)
        return client.cross_entropy(z, batch.labels) + kd(z, batch["teacher"], self.params.temperature)

    def dual_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 19, FCCL's objective: "without FNTD" in the ablations (section 4.3)."""
        z = client.logits(batch.inputs)
        return client.cross_entropy(z, batch.labels) + kd(z, batch["teacher"], 1.0) + kd(z, batch["pretrained"], 1.0)

    def ewc_loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ·EWC (Table 16)."""
        old, fisher = client.stored_weights("teacher"), client.stored_weights("fisher")
        penalty = ewc(client.model.parameters(), [old[n] for n in fisher], fisher.values())
        return self.supervised_loss(client, batch) + self.params.ewc_weight * penalty
