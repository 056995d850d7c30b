"""FCCL+. Huang, Ye, Shi and Du, Generalizable Heterogeneous Federated Cross-Correlation and Instance Similarity
Learning, TPAMI 2023."""

from typing import Any, Literal

from torch import Tensor

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.losses import ewc, fntd, kd, label_smoothing, matched_smoothing
from fedchoir.methods.api import Batch, Client, Field, Script, Settings, Step, Teacher
from fedchoir.methods.fccl_public_phase import FCCLPublicParams, FCCLPublicPhase
from fedchoir.methods.fisher import FisherForm, diagonal_fisher
from fedchoir.utils.errors import UsageError

Regulariser = Literal["fntd", "kd", "dual", "ewc", "label-smoothing", "none"]


class FCCLPlusParams(FCCLPublicParams):
    temperature: float = Field(3.0, gt=0, description="τ of eq. 8 and 13: temperature of FNTD and KD")
    regulariser: Regulariser = Field(
        "fntd",
        description="local: FNTD, KD (eq. 10), dual (FCCL's two teachers, eq. 19), EWC (Table 16), label smoothing "
        "with the optimum of FNTD (a control without a teacher) or none",
    )
    fntd_form: Literal["masked", "renormalised"] = Field(
        "masked",
        description="masked: eq. 13, over all classes, target left out; renormalised: as in FedNTD, and where there "
        "are at most τ classes, because the masked form would not prefer the right one",
    )
    tau_squared: bool = Field(True, description="factor τ² of FNTD and KD: in eq. 10 and the code, not in eq. 14")
    kd_share: float = Field(0.0, ge=0, le=1, description="share of the local epochs, the first, with KD (Table 17)")
    ewc_weight: float = Field(0.1, ge=0, description="λ of EWC (Table 16)")
    fisher: FisherForm = Field(
        "sample", description="EWC: mean of the squared gradients of samples, or of batches, which is far smaller"
    )
    smoothing_confidence: float = Field(
        0.86,
        gt=0,
        lt=1,
        description="label smoothing: the teacher's probability of the true class for which it has "
        "the optimum of FNTD (0.86: 0.57 with 10 classes and τ = 3)",
    )
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

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        p = self.params
        if p.regulariser == "label-smoothing":
            try:
                self.smoothing = matched_smoothing(
                    p.smoothing_confidence, len(spec.classes), p.temperature, p.tau_squared
                )
            except ValueError as error:
                raise UsageError(f"regulariser = 'label-smoothing' is not possible: {error}") from None

    @classmethod
    def dp_obstacle(cls, params: Any) -> str:
        return "EWC's Fisher information of all samples has no noise" if params.regulariser == "ewc" else ""

    def setup(self) -> Script:
        yield from super().setup()
        if self.params.regulariser == "dual":
            yield Step(self.store_pretrained)

    def local_update(self, client: Client) -> None:
        p = self.params
        if p.teacher == "updated":
            self.store_teacher(client)
        match p.regulariser:
            case "none":
                super().local_update(client)
            case "label-smoothing":
                client.train(self.smoothed_loss)
            case "ewc":
                client.memory["fisher"] = diagonal_fisher(client, client.stored_weights("teacher"), p.fisher)
                client.train(self.ewc_loss)
            case "dual":
                client.train(
                    self.dual_loss, teacher=self.frozen(client, "teacher"), pretrained=self.frozen(client, "pretrained")
                )
            case "kd" | "fntd":
                self.distil(client)

    def distil(self, client: Client) -> None:
        """KD in the first share of the epochs (Table 17), then FNTD, with one optimiser."""
        epochs, teacher = self.params.epochs_of(client.index), self.frozen(client, "teacher")
        kd_epochs = epochs if self.params.regulariser == "kd" else round(self.params.kd_share * epochs)
        optimizer = client.train(self.kd_loss, epochs=kd_epochs, teacher=teacher)
        client.train(self.fntd_loss, epochs=epochs - kd_epochs, first=kd_epochs, optimizer=optimizer, teacher=teacher)

    def frozen(self, client: Client, name: str) -> Teacher:
        return Teacher(client.stored_weights(name), batchnorm=self.params.teacher_batchnorm)

    def fntd_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 14."""
        p, z = self.params, client.logits(batch.inputs)
        form = p.fntd_form if z.shape[1] > p.temperature else "renormalised"
        distance = fntd(z, batch["teacher"], batch.labels, p.temperature, form, p.tau_squared)
        return client.cross_entropy(z, batch.labels) + distance

    def kd_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 10."""
        p, z = self.params, client.logits(batch.inputs)
        return client.cross_entropy(z, batch.labels) + kd(z, batch["teacher"], p.temperature, p.tau_squared)

    def dual_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 19, FCCL's objective: "without FNTD" in the ablations (section 4.3)."""
        z = client.logits(batch.inputs)
        return client.cross_entropy(z, batch.labels) + kd(z, batch["teacher"], 1.0) + kd(z, batch["pretrained"], 1.0)

    def smoothed_loss(self, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy with the optimum of eq. 14 and no teacher: what the cap on the confidence brings by itself."""
        return label_smoothing(client.logits(batch.inputs), batch.labels, self.smoothing, client.class_weights)

    def ewc_loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ·EWC (Table 16)."""
        old, fisher = client.stored_weights("teacher"), client.stored_weights("fisher")
        penalty = ewc(client.model.parameters(), [old[n] for n in fisher], fisher.values())
        return self.supervised_loss(client, batch) + self.params.ewc_weight * penalty
