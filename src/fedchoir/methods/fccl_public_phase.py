"""The public phase of FCCL+ and Choir: FCCM + ω·FISL on exchanged logits and similarities (FCCL+ eq. 6)."""

from typing import Literal

from torch import Tensor

from fedchoir.data.samples import Recolor
from fedchoir.losses import fccm, fisl, instance_similarity
from fedchoir.methods.api import Batch, Client, Field, PublicBatch, Round, Script, Settings
from fedchoir.methods.previous_teacher import PreviousTeacher
from fedchoir.payload import Payload, sends


class FCCMParams(Settings):
    off_diagonal: float = Field(0.0051, ge=0, description="λ of eq. 2: weight of the off-diagonal entries")
    use_fccm: bool = Field(True, description="FCCM on/off (Table 10 of FCCL+)")
    standardise: Literal["biased", "unbiased"] = Field(
        "biased", description="std of the logits' columns: biased with eps, or unbiased without (released code)"
    )


class FCCLPublicParams(FCCMParams):
    omega: float = Field(3.0, ge=0, description="ω of eq. 6: weight of FISL")
    similarity_temperature: float = Field(
        0.02, gt=0, description="μ of eq. 3: temperature of the similarities (text: 0.02, Table 7: 0.002)"
    )
    use_fisl: bool = Field(True, description="FISL on/off (Table 10)")


class FCCLPublicPhase(PreviousTeacher):
    """The public phase of FCCL+: clients send logits and similarities and learn FCCM + ω·FISL (eq. 6)."""

    Params = FCCLPublicParams
    params: FCCLPublicParams
    symmetric = frozenset({"similarity"})

    def public_transform(self, client: Client) -> Recolor | None:
        """A random change of the public images, equal for all clients; None: no change."""
        return None

    def public_phase(self, r: Round) -> Script:
        if self.params.use_fccm or self.params.use_fisl:
            yield from super().public_phase(r)

    def payload_fields(self) -> dict[str, str]:
        """Only what the losses in use compare (Table 4 of FCCL+)."""
        fields = {"logits": "B C"} if self.params.use_fccm else {}
        return fields | {"similarity": "B B-1"} if self.params.use_fisl else fields

    @property
    def streams(self) -> dict[str, str]:  # type: ignore[override]
        fields = self.payload_fields()
        return {"share": "speak" if len(fields) == 2 else f"speak_{next(iter(fields), '')}"}  # frozen stream names

    @sends(payload_fields)
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        h, z = client.public_outputs(batch, self.public_transform(client))
        fields = {"logits": z} if self.params.use_fccm else {}
        if self.params.use_fisl:
            fields["similarity"] = instance_similarity(h, self.params.similarity_temperature)
        return Payload(fields)

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        client.public_step(batch, self.public_loss, self.public_transform(client), **consensus)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        """eq. 6."""
        p = self.params
        h, z = client.features_and_logits(batch.inputs)
        if p.passes == "two":
            z = client.logits(batch.inputs)
        loss = z.new_zeros(())
        if p.use_fccm:
            loss = loss + fccm(z, batch["logits"], p.off_diagonal, standardise=p.standardise)
        if p.use_fisl:
            loss = loss + p.omega * fisl(instance_similarity(h, p.similarity_temperature), batch["similarity"])
        return loss
