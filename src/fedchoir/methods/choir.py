"""Choir, this project's own method: FCCL+'s public phase on augmented and recolored images."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.data.image.color_transforms import WIDE_COLORS, color_statistics, recolor
from fedchoir.data.samples import Recolor
from fedchoir.losses import fntd
from fedchoir.methods.api import Batch, Client, Exchange, Field, Round, Script, Settings, Step, Teacher, gather, mean
from fedchoir.methods.fccl_public_phase import FCCLPublicParams, FCCLPublicPhase
from fedchoir.models import Model, build
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class ChoirParams(FCCLPublicParams):
    recolor: Literal["wide", "exchanged", "none"] = Field(
        "wide",
        description="images only; wide: any colours, nothing is sent; exchanged: the clients' own colours; none: off",
    )
    recolor_share: float = Field(0.5, ge=0, le=1, description="ρ: share of the private images that are recolored")
    public_recolor_share: float = Field(0.5, ge=0, le=1, description="share of the public images that are recolored")
    use_fntd: bool = Field(False, description="non-target distillation in the local phase")
    temperature: float = Field(3.0, gt=0, description="τ: temperature of the non-target distillation")
    shared_model: str = Field(
        "", description="a small model that all clients share and average, such as simple_cnn@16; empty: none"
    )


class Ensemble(nn.Module):
    """The log of the mean of two models' probabilities."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, inputs: Tensor) -> Tensor:
        return ((self.one(inputs).softmax(dim=1) + self.two(inputs).softmax(dim=1)) / 2).log()


class Choir(FCCLPublicPhase):
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

    **Shared model.** With ``shared_model`` every client also trains a small model g of one architecture by CE(g(x̃), y),
    and the server averages it after every round. The prediction is (σ(z(x)) + σ(g(x))) / 2.
    """

    name = "choir"
    title = "augmented and recolored images; cross-correlation and instance similarity on recolored public data"
    Params = ChoirParams
    params: ChoirParams

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
        frozen = {"share_color_statistics": "introduce", "upload_shared_model": "lend"}  # frozen stream names
        return {**super().streams, **frozen}

    @property
    def uses_teacher(self) -> bool:
        return self.params.use_fntd

    def round(self, r: Round) -> Script:
        if self.params.recolor == "exchanged":
            yield from self.exchange_color_statistics(r)
        if self.params.shared_model:
            yield from self.send_shared_model()  # for clients that joined or missed the last round
        yield from super().round(r)
        if self.params.shared_model:
            self.server |= yield Exchange(self.upload_shared_model, aggregator=mean)
            yield from self.send_shared_model()

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

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        if not self.params.shared_model:
            return {}
        spec = self.spec
        with seeded(spec.seed, "lead"):  # frozen stream name; equal initial weights at all clients
            return {"shared_model": build(self.params.shared_model, len(spec.classes), spec.inputs)}

    def send_shared_model(self) -> Script:
        if weights := Payload(self.server).only("shared_model"):
            yield Step(self.download_shared_model, received=weights)

    @sends(shared_model=MODULE)
    def upload_shared_model(self, client: Client) -> Payload:
        return state_payload("shared_model", client.modules["shared_model"].state_dict())

    def download_shared_model(self, client: Client, received: Payload) -> None:
        client.modules["shared_model"].load_state_dict(received.under("shared_model"))

    def predict(self, client: Client, images: Tensor) -> Tensor:
        """With a shared model, the log of the mean of both models' probabilities."""
        logits = super().predict(client, images)
        if not self.params.shared_model:
            return logits
        both = (logits.softmax(dim=1) + client.run_module("shared_model", images).softmax(dim=1)) / 2
        return both.log()

    def inference_module(self, model: Model, modules: nn.ModuleDict) -> nn.Module:
        return Ensemble(model, modules["shared_model"]) if self.params.shared_model else model

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
