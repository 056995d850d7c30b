"""FBCL. Lai et al., Generalizable Heterogeneity-aware Federated Feature and Basic-matrix Consistency Learning,
AAAI 2026."""

from copy import deepcopy
from typing import Any, Literal

from torch import Tensor, nn

from fedchoir.losses import cnd, fbm, fia, frr, gaussian
from fedchoir.methods.api import Batch, Client, Field, PublicBatch, Round, Script, Settings, Step, Teacher
from fedchoir.methods.previous_teacher import PreviousTeacher
from fedchoir.models import Model
from fedchoir.payload import MODEL, MODULE, Payload, sends, state_payload


class FBCLParams(Settings):
    depth: int = Field(64, ge=1, description="D: depth of the common feature space; δ costs B·D² numbers")
    diagonal: bool = Field(False, description="send the variances alone (B·D) instead of the covariances (B·D²)")
    fia_reduction: Literal["sum", "mean"] = Field(
        "sum", description="FIA over the entries of μ and δ: sum (eq. 3), or mean, beside which λ·FBM has an effect"
    )
    use_fia: bool = Field(True, description="feature instance-level alignment on/off (Table 5)")
    use_fbm: bool = Field(True, description="feature basic-matrix consistency on/off (Table 5)")
    use_cnd: bool = Field(True, description="correct not-target distillation on/off (Table 5)")
    use_frr: bool = Field(True, description="feature relationship regularisation on/off (Table 5)")
    fbm_weight: float = Field(0.05, ge=0, description="λ of eq. 5: weight of FBM")
    cnd_weight: float = Field(3.0, ge=0, description="α of eq. 9: weight of CND")
    frr_weight: float = Field(0.1, ge=0, description="β of eq. 9: weight of FRR")
    cnd_form: Literal["masked", "renormalised"] = Field(
        "masked", description="masked: eq. 6, target left out; renormalised: over the other classes alone"
    )
    teacher: Literal["previous", "updated"] = Field(
        "previous", description="CND's old model: that of the last round's end (Algorithm 1), or after the public phase"
    )
    teacher_batchnorm: Literal["eval", "train"] = Field(
        "eval",
        description="BatchNorm mode of the old models: eval has the statistics of the public set after the public "
        "phase, train those of the batch",
    )


class FBCL(PreviousTeacher):
    """Public phase: FIA + λ·FBM on the mean and covariance of each image's mapped features. Local phase: CE + α·CND
    + β·FRR.

    A 1×1 convolution maps every client's last feature map to depth D. CND distils from the old model where it was
    right; FRR preserves the similarities between the mapped means of a batch after the public phase (Algorithm 1, line
    14). Where all clients have one architecture, the mapping is averaged with the model. The paper's "40 iterations"
    are epochs here, as in FCCL's code, whose setting it follows.
    """

    name = "fbcl"
    title = "per-image Gaussians aligned on public data, distillation from correct old predictions on private data"
    paper = "Lai et al., AAAI 2026"
    Params = FBCLParams
    params: FBCLParams

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        model.require_map("fbcl")
        return {"map": nn.Conv2d(model.map_dim, self.params.depth, kernel_size=1)}

    @property
    def uses_teacher(self) -> bool:
        return self.params.use_cnd

    # -- public phase ----------------------------------------------------------------------------------------------

    def public_phase(self, r: Round) -> Script:
        if self.params.use_fia:
            yield from super().public_phase(r)
        elif self.params.use_fbm:  # FBM alone needs no aggregate
            for batches in r.public_batches():
                yield Step(self.public_update_alone, batches)

    @property
    def dims(self) -> dict[str, int]:
        return {"D": self.params.depth}

    def payload_fields(self) -> dict[str, str]:
        return {"mu": "B D", "delta": "B D" if self.params.diagonal else "B D D"}

    @property
    def streams(self) -> dict[str, str]:  # type: ignore[override]
        return {"share": "speak_diagonal" if self.params.diagonal else "speak"}  # frozen stream names

    @sends(payload_fields)
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        with client.batch_stats_frozen():
            mu, delta = self.gaussian(client, client.public_samples(batch))
        return Payload(mu=mu, delta=delta)

    def gaussian(self, client: Client, images: Tensor) -> tuple[Tensor, Tensor]:
        """μ (B×D) and δ (B×D×D, or B×D) of eq. 2."""
        return gaussian(client.run_module("map", client.stages(images)[0]), self.params.diagonal)

    def public_update_alone(self, client: Client, batch: PublicBatch) -> None:
        client.public_step(batch, self.public_loss)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 5."""
        p = self.params
        mu, delta = self.gaussian(client, batch.inputs)
        loss = fia(mu, delta, batch["mu"], batch["delta"], p.fia_reduction) if p.use_fia else mu.new_zeros(())
        return loss + p.fbm_weight * fbm(mu) if p.use_fbm else loss

    # -- local phase -----------------------------------------------------------------------------------------------

    def local_update(self, client: Client) -> None:
        targets: dict[str, Any] = {}
        p, mode = self.params, self.params.teacher_batchnorm
        if p.use_cnd:
            if p.teacher == "updated":
                self.store_teacher(client)
            targets["teacher"] = Teacher(client.stored_weights("teacher"), batchnorm=mode)
        if p.use_frr:
            branch = deepcopy(client.modules["map"]).requires_grad_(False)
            targets["mu"] = Teacher(client.snapshot(), lambda model, x: mapped_mean(branch(model.feature_map(x))), mode)
        client.train(self.local_loss, **targets)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 9."""
        p = self.params
        m, _, z = client.stages(batch.inputs)
        loss = client.cross_entropy(z, batch.labels)
        if p.use_cnd:
            loss = loss + p.cnd_weight * cnd(z, batch["teacher"], batch.labels, p.cnd_form)
        if p.use_frr:
            loss = loss + p.frr_weight * frr(mapped_mean(client.run_module("map", m)), batch["mu"])
        return loss

    # -- averaging of one architecture -------------------------------------------------------------------------

    @sends(weights=MODEL, map=MODULE)
    def upload(self, client: Client) -> Payload:
        return Payload({**super().upload(client), **state_payload("map", client.modules["map"].state_dict())})

    def download(self, client: Client, received: Payload) -> None:
        super().download(client, received)
        client.modules["map"].load_state_dict(received.under("map"))


def mapped_mean(feature_map: Tensor) -> Tensor:
    """Mean over positions: B×D×h×w → B×D."""
    return feature_map.mean(dim=(2, 3))
