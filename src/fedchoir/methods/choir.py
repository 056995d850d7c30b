"""Choir, this project's own: what holds up of FCCL+, on images that are moved, and partly painted in other colours."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedchoir.core.actions import Exchange, Round, Script, Step
from fedchoir.core.aggregation import gather, mean
from fedchoir.core.client import Client, Teacher
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.image.color_transforms import WIDE_COLORS, Recolor, color_statistics, recolor
from fedchoir.losses import fntd
from fedchoir.methods.fccl_public_phase import FCCLPublicParams, FCCLPublicPhase
from fedchoir.models import VisionModel, build
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class ChoirParams(FCCLPublicParams):
    recolor: Literal["wide", "exchanged", "none"] = Field(
        "wide", description="wide: any colours, nothing is sent; exchanged: the clients' own; none: no painting"
    )
    recolor_share: float = Field(0.5, ge=0, le=1, description="ρ: share of the private images that are painted")
    public_recolor_share: float = Field(0.5, ge=0, le=1, description="share of the public images that are painted")
    use_fntd: bool = Field(False, description="non-target distillation at home")
    temperature: float = Field(3.0, gt=0, description="τ: temperature of the non-target distillation")
    shared_model: str = Field(
        "", description="a small model that all share, such as simple_cnn@16: averaged, it answers too; empty: none"
    )


class Choir(FCCLPublicPhase):
    """FCCL+'s public phase and plain supervision at home, on images that are moved and partly painted anew.

    **Painting.** With z the luma of an image x, mean 0 and variance 1 over the image, and a style [m | B | W] (3×7),

        x′ = clamp(m + B ε + (W ε′) · z, 0, 1),   ε, ε′ ~ N(0, I₃)

    keeps the drawing and changes its colours; ε′ and −ε′ are equally likely, so bright becomes dark half the time. The
    style is one ``wide`` for all, m = ½ and B = W = ¼ I; or, ``exchanged``, that of a client k drawn for each image: k
    sends 21 numbers once, the mean colour m_k of its images and roots B_k, W_k of the covariances of colours between
    and within them, and the server passes them on.

    **Public phase.** FCCM + ω·FISL (eq. 6 of FCCL+) on public images, a share of which is painted, alike at all sites.

    **Local phase.** x is a private image, turned, zoomed and shifted a little (``private_augment``); x̃ = x′ for a share
    ρ of the images and x̃ = x for the rest. The loss is CE(z(x̃), y), and with ``use_fntd``

        CE(z(x̃), y) + τ² KL(σ_{≠y}(z_T(x) / τ) ‖ σ_{≠y}(z(x̃) / τ))

    with T the model at the start of the round, which sees x unpainted, and σ_{≠y} over the wrong classes alone
    (FedNTD's form, which has no gradient on the true logit).

    **Lead.** With ``lead`` all clients also share a small model g of one architecture. It learns beside the own one, by
    CE(g(x̃), y) and without touching it, and is averaged after every round. A client then answers with both voices:
    (σ(z(x)) + σ(g(x))) / 2. (FML has such a model, too; there it teaches the own one, which answers alone.)
    """

    name = "choir"
    title = "practice on moved and repainted images; cross-correlation and instance similarity on repainted public data"
    Params = ChoirParams
    params: ChoirParams
    profiles = {name: {"private_augment": "affine"} for name in ("fixed", "paper", "official")}

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server passes on each client's style" if getattr(params, "recolor", "") == "exchanged" else ""

    def round(self, r: Round) -> Script:
        if self.params.recolor == "exchanged":
            yield from self.exchange_color_statistics(r)
        if self.params.use_fntd:
            yield Step(self.remember)
        if self.params.shared_model:
            yield from self.send_shared_model()  # who is new, or was away, does not know it
        yield from super().round(r)
        if self.params.shared_model:
            self.server |= yield Exchange(self.upload_shared_model, aggregator=mean)
            yield from self.send_shared_model()

    def exchange_color_statistics(self, r: Round) -> Script:
        """Who is new in this round says what its images look like; everyone hears of all that are known."""
        styles = self.server.get("styles", torch.full((len(self.task.clients), 3, 7), torch.nan)).clone()
        if styles[list(r.clients)].isnan().any():
            aggregated = yield Exchange(self.share_color_statistics, aggregator=gather)
            styles[list(aggregated)] = torch.stack([answer["style"].cpu() for answer in aggregated.values()])
            self.server["styles"] = styles
        yield Step(self.meet, received=Payload(styles=styles[~styles.isnan().any(dim=(1, 2))]))

    @sends(style="3 7")
    def share_color_statistics(self, client: Client) -> Payload:
        return Payload(style=color_statistics(client.private.images))

    def meet(self, client: Client, received: Payload) -> None:
        client.memory["styles"] = received["styles"]

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        if not self.params.shared_model:
            return {}
        with seeded(self.task.seed, "lead"):  # it starts alike everywhere
            return {"lead": build(self.params.shared_model, len(self.task.classes), image_size=self.task.image_size)}

    def send_shared_model(self) -> Script:
        if lead := Payload(self.server).only("lead"):
            yield Step(self.follow, received=lead)

    @sends(lead=MODULE)
    def upload_shared_model(self, client: Client) -> Payload:
        return state_payload("lead", client.modules["lead"].state_dict())

    def follow(self, client: Client, received: Payload) -> None:
        client.modules["lead"].load_state_dict(received.under("lead"))

    def predict(self, client: Client, images: Tensor) -> Tensor:
        """With a lead by both voices: the mean of what the own model and the lead hold likely."""
        own = super().predict(client, images)
        return (
            (own.softmax(dim=1) + client.run_module("lead", images).softmax(dim=1)) / 2
            if self.params.shared_model
            else own
        )

    def recolor_transform(self, client: Client, share: float) -> Recolor | None:
        """Paints a share of the images it is given; None where nothing is painted, or no style is known yet."""
        styles = WIDE_COLORS.to(client.device) if self.params.recolor == "wide" else client.memory.get("styles")
        if not share or not isinstance(styles, Tensor):
            return None
        return lambda pixels, draw: recolor(pixels, styles, share, draw)

    def public_view(self, client: Client) -> Recolor | None:
        return self.recolor_transform(client, self.params.public_recolor_share)

    def pretrain(self, client: Client) -> None:
        recolor_transform = self.recolor_transform(client, self.params.recolor_share)
        client.train(
            self.supervised_loss, epochs=self.params.pretrain_epochs, phase="pretrain", recolor=recolor_transform
        )

    def local_update(self, client: Client) -> None:
        targets: dict[str, Any] = {"teacher": Teacher(client.stored_weights("teacher"))} if self.params.use_fntd else {}
        client.train(self.local_loss, recolor=self.recolor_transform(client, self.params.recolor_share), **targets)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z, p = client.logits(batch.images), self.params
        loss = cross_entropy(z, batch.labels)
        if p.use_fntd:
            loss = loss + fntd(z, batch["teacher"], batch.labels, p.temperature, "renormalised")
        if p.shared_model:
            loss = loss + cross_entropy(client.run_module("lead", batch.images), batch.labels)
        return loss
