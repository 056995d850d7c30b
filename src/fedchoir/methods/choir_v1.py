"""The first version of Choir: FCCL+'s public phase on augmented and recolored images."""

from typing import Any, Literal

import torch
from torch import Tensor

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.data.image.color_transforms import WIDE_COLORS, color_statistics, recolor
from fedchoir.data.samples import Recolor
from fedchoir.losses import fntd
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step, Teacher, gather
from fedchoir.methods.fccl_public_phase import FCCLPublicParams, FCCLPublicPhase
from fedchoir.methods.shared_ensemble import SharedEnsemble, SharedEnsembleParams
from fedchoir.payload import Payload, sends
from fedchoir.utils.errors import UsageError


class ChoirV1Params(SharedEnsembleParams, FCCLPublicParams):
    recolor: Literal["wide", "exchanged", "none"] = Field(
        "wide",
        description="images only; wide: any colours, nothing is sent; exchanged: the clients' own colours; none: off",
    )
    recolor_share: float = Field(0.5, ge=0, le=1, description="ρ: share of the private images that are recolored")
    public_recolor_share: float = Field(0.5, ge=0, le=1, description="share of the public images that are recolored")
    use_fntd: bool = Field(False, description="non-target distillation in the local phase")
    temperature: float = Field(3.0, gt=0, description="τ: temperature of the non-target distillation")


class ChoirV1(SharedEnsemble, FCCLPublicPhase):
    """FCCL+'s public phase and supervised training on augmented samples. A share of images is recolored, too.

    **Recoloring.** With z the luma of an image x, mean 0 and variance 1 over the image, and colours [m | B | W] (3×7),

        x′ = clamp(m + B ε + (W ε′) · z, 0, 1),   ε, ε′ ~ N(0, I₃)

    keeps the shapes and changes the colours; half of the images are inverted. With ``wide``, m = ½ and B = W = ¼ I.
    With ``exchanged`` they are those of a client drawn for each image: every client sends the 21 numbers of
    `color_statistics` once, and the server forwards them.

    **Public phase.** FCCM + ω·FISL (FCCL+ eq. 6) on public images, a share of which is recolored for all clients.

    **Local phase.** x is a private image, augmented (``private_augment``); x̃ = x′ for a share ρ of the images, x̃ = x
    for the rest. The loss is CE(z(x̃), y), and with ``use_fntd``

        CE(z(x̃), y) + τ² KL(σ_{≠y}(z_T(x) / τ) ‖ σ_{≠y}(z(x̃) / τ))

    with the teacher T, the model at the start of the round, on the original colours (FedNTD's form of the loss).

    **Shared model.** See `SharedEnsemble`; it is trained by CE(g(x̃), y).
    """

    name = "choir-v1"
    title = "first version of choir: recolored images; cross-correlation and instance similarity on public data"
    Params = ChoirV1Params
    params: ChoirV1Params

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server forwards each client's colours" if getattr(params, "recolor", "") == "exchanged" else ""

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        if self.params.recolor == "exchanged" and spec.inputs.modality != "image":
            raise UsageError(
                f"recolor = 'exchanged' is for images, not for {spec.inputs.modality} samples; choose none"
            )

    @property
    def streams(self) -> dict[str, str]:  # type: ignore[override]
        return {**super().streams, "share_color_statistics": "introduce"}  # frozen stream name

    @property
    def uses_teacher(self) -> bool:
        return self.params.use_fntd

    def round(self, r: Round) -> Script:
        if self.params.recolor == "exchanged":
            yield from self.exchange_color_statistics(r)
        if self.params.shared_model:
            yield from self.send_shared_model()
        yield from super().round(r)
        yield from self.average_shared_model()

    def exchange_color_statistics(self, r: Round) -> Script:
        """Ask clients whose colours the server does not have yet; send all known colours to every client."""
        colors = self.server.get("colors", torch.full((len(self.spec.clients), 3, 7), torch.nan)).clone()
        if colors[list(r.clients)].isnan().any():
            payloads = yield Exchange(self.share_color_statistics, aggregator=gather)
            colors[list(payloads)] = torch.stack([payload["colors"].cpu() for payload in payloads.values()])
            self.server["colors"] = colors
        yield Step(self.store_colors, received=Payload(colors=colors[~colors.isnan().any(dim=(1, 2))]))

    @sends(colors="3 7")
    def share_color_statistics(self, client: Client) -> Payload:
        return Payload(colors=color_statistics(client.private.inputs))

    def store_colors(self, client: Client, received: Payload) -> None:
        client.memory["colors"] = received["colors"]

    def recolor_transform(self, client: Client, share: float) -> Recolor | None:
        """Recolors a share of a batch; None where the share is 0, the samples are no images or no colours are known."""
        if self.spec.inputs.modality != "image":
            return None
        colors = WIDE_COLORS.to(client.device) if self.params.recolor == "wide" else client.memory.get("colors")
        if not share or not isinstance(colors, Tensor):
            return None
        return lambda pixels, draw: recolor(pixels, colors, share, draw)

    def public_transform(self, client: Client) -> Recolor | None:
        return self.recolor_transform(client, self.params.public_recolor_share)

    def pretrain(self, client: Client) -> None:
        transform = self.recolor_transform(client, self.params.recolor_share)
        client.train(self.supervised_loss, epochs=self.params.pretrain_epochs, phase="pretrain", recolor=transform)

    def local_update(self, client: Client) -> None:
        targets: dict[str, Any] = {"teacher": Teacher(client.stored_weights("teacher"))} if self.params.use_fntd else {}
        client.train(self.local_loss, recolor=self.recolor_transform(client, self.params.recolor_share), **targets)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z, p = client.logits(batch.inputs), self.params
        loss = client.cross_entropy(z, batch.labels)
        if p.use_fntd:
            loss = loss + fntd(z, batch["teacher"], batch.labels, p.temperature, "renormalised")
        if p.shared_model:
            loss = loss + client.cross_entropy(client.run_module("shared_model", batch.inputs), batch.labels)
        return loss
