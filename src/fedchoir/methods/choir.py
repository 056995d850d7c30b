"""Choir, this project's own: what holds up of FCCL+, on images that are moved, and partly painted in other colours."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedchoir.data.style import WIDE, Restyle, restyle, style_of
from fedchoir.federation.aggregate import gather, mean
from fedchoir.federation.client import Client, Frozen
from fedchoir.federation.payload import PART, Payload, says, state_payload
from fedchoir.federation.phases import Exchange, Round, Script, Step
from fedchoir.federation.settings import Settings
from fedchoir.federation.training import Batch
from fedchoir.losses import fntd
from fedchoir.methods.shared_similarities import SharedSimilarities, SimilarityParams
from fedchoir.models import VisionModel, build
from fedchoir.rng import seeded


class ChoirParams(SimilarityParams):
    styles: Literal["wide", "exchanged", "none"] = Field(
        "wide", description="wide: any colours, nothing is sent; exchanged: the clients' own; none: no painting"
    )
    style_share: float = Field(0.5, ge=0, le=1, description="ρ: share of the private images that are painted")
    public_style_share: float = Field(0.5, ge=0, le=1, description="share of the public images that are painted")
    use_fntd: bool = Field(False, description="non-target distillation at home")
    temperature: float = Field(3.0, gt=0, description="τ: temperature of the non-target distillation")
    lead: str = Field(
        "", description="a small model that all share, such as simple_cnn@16: averaged, it answers too; empty: none"
    )


class Choir(SharedSimilarities):
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
    def needs_each(cls, params: Settings) -> str:
        return "its server passes on each client's style" if getattr(params, "styles", "") == "exchanged" else ""

    def round(self, r: Round) -> Script:
        if self.params.styles == "exchanged":
            yield from self.introductions(r)
        if self.params.use_fntd:
            yield Step(self.remember)
        if self.params.lead:
            yield from self.follow_the_lead()  # who is new, or was away, does not know it
        yield from super().round(r)
        if self.params.lead:
            self.server |= yield Exchange(self.lend, combine=mean)
            yield from self.follow_the_lead()

    def introductions(self, r: Round) -> Script:
        """Who is new in this round says what its images look like; everyone hears of all that are known."""
        styles = self.server.get("styles", torch.full((len(self.task.clients), 3, 7), torch.nan)).clone()
        if styles[list(r.clients)].isnan().any():
            said = yield Exchange(self.introduce, combine=gather)
            styles[list(said)] = torch.stack([answer["style"].cpu() for answer in said.values()])
            self.server["styles"] = styles
        yield Step(self.meet, heard=Payload(styles=styles[~styles.isnan().any(dim=(1, 2))]))

    @says(style="3 7")
    def introduce(self, client: Client) -> Payload:
        return Payload(style=style_of(client.private.images))

    def meet(self, client: Client, heard: Payload) -> None:
        client.memory["styles"] = heard["styles"]

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        if not self.params.lead:
            return {}
        with seeded(self.task.seed, "lead"):  # it starts alike everywhere
            return {"lead": build(self.params.lead, len(self.task.classes), image_size=self.task.image_size)}

    def follow_the_lead(self) -> Script:
        if lead := Payload(self.server).only("lead"):
            yield Step(self.follow, heard=lead)

    @says(lead=PART)
    def lend(self, client: Client) -> Payload:
        return state_payload("lead", client.parts["lead"].state_dict())

    def follow(self, client: Client, heard: Payload) -> None:
        client.parts["lead"].load_state_dict(heard.under("lead"))

    def answer(self, client: Client, images: Tensor) -> Tensor:
        """With a lead by both voices: the mean of what the own model and the lead hold likely."""
        own = super().answer(client, images)
        return (own.softmax(dim=1) + client.apply("lead", images).softmax(dim=1)) / 2 if self.params.lead else own

    def painter(self, client: Client, share: float) -> Restyle | None:
        """Paints a share of the images it is given; None where nothing is painted, or no style is known yet."""
        styles = WIDE.to(client.device) if self.params.styles == "wide" else client.memory.get("styles")
        if not share or not isinstance(styles, Tensor):
            return None
        return lambda pixels, draw: restyle(pixels, styles, share, draw)

    def public_view(self, client: Client) -> Restyle | None:
        return self.painter(client, self.params.public_style_share)

    def pretrain(self, client: Client) -> None:
        painter = self.painter(client, self.params.style_share)
        client.fit(self.supervised_loss, epochs=self.params.pretrain_epochs, phase="pretrain", restyle=painter)

    def practise(self, client: Client) -> None:
        targets: dict[str, Any] = {"teacher": Frozen(client.recall("teacher"))} if self.params.use_fntd else {}
        client.fit(self.local_loss, restyle=self.painter(client, self.params.style_share), **targets)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z, p = client.logits(batch.images), self.params
        loss = cross_entropy(z, batch.labels)
        if p.use_fntd:
            loss = loss + fntd(z, batch["teacher"], batch.labels, p.temperature, "renormalised")
        if p.lead:
            loss = loss + cross_entropy(client.apply("lead", batch.images), batch.labels)
        return loss
