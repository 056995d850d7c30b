"""Methods whose clients condense their private samples into a few synthetic ones and send those."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedchoir.condensation.matching import Embed, Goal, Recipe, condense, private_means, start_noise
from fedchoir.condensation.networks import random_network
from fedchoir.condensation.sample_space import check_modality, decode, for_network, pack, sent_dtype, siamese, unpack
from fedchoir.condensation.sets import find_fault, join_sets
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Client, Exchange, Field, Method, Round, Script, Settings, gather
from fedchoir.payload import Declaration, Payload, sends
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator


class CondensingParams(Settings):
    per_class: int = Field(10, ge=1, description="n: synthetic samples of each class that a client sends")
    formation: int = Field(
        1, ge=1, le=4, description="images only: a sent image holds formation² images of a lower resolution"
    )
    soft_labels: bool = Field(
        False, description="send the client's own predictions for its synthetic samples beside their classes"
    )
    embedders: Literal["random", "own", "both"] = Field(
        "random",
        description="networks under which class means are matched: new random ones, the client's own model as it is, "
        "or both in turn",
    )
    refresh: int = Field(0, ge=0, description="condense on and send again every so many rounds; 0: once")
    condense_steps: int = Field(150, ge=1, description="steps of a condensation, each under another network")
    condense_lr: float = Field(0.02, gt=0, description="learning rate: of the range of pixels, or in standard units")
    condense_batch: int = Field(32, ge=1, description="private samples of a class in a step of condensation")
    network_width: int = Field(32, ge=4, description="channels of the random networks; a quarter of an MLP's width")
    smallest_class: int = Field(
        5, ge=1, description="a class with fewer private samples is not condensed: its mean would show them"
    )


def condensed_fields(method: "Condensing") -> Declaration:
    inputs, soft = method.spec.inputs, {"soft": "C N F C"} if method.params.soft_labels else {}
    shape = " ".join(map(str, inputs.shape))
    return {"condensed": f"C N {shape}:{sent_dtype(inputs.modality)}", "owned": "C", **soft}


class Condensing(Method):
    """Condensation in the client, and the exchange of what it gives.

    Each client i keeps n synthetic samples s of every class c that minimise, by distribution matching (Zhao and Bilen),

        E_e Σ_c ‖ mean_{x ∈ D_i^c} e(A x) − mean_{s ∈ S_i^c} e(A s) ‖²

    with embedders e drawn anew for every step, the same at all clients, and one random change A of private and
    synthetic samples alike in each step. They start from noise. With ``formation`` f, one image holds f² smaller ones,
    which are enlarged before they are used.
    """

    Params = CondensingParams
    params: CondensingParams
    synthetic_samples = frozenset({"condensed"})

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        p = self.params
        check_modality(spec.inputs, p.formation, self.name)
        if (p.soft_labels or p.embedders != "random") and not (p.pretrain_epochs or p.refresh):
            wanted = "soft_labels = true" if p.soft_labels else f"embedders = {p.embedders!r}"
            raise UsageError(f"{wanted} needs a trained model: set pretrain_epochs or refresh to 1 or more")

    @property
    def dims(self) -> dict[str, int]:
        return {**super().dims, "N": self.params.per_class, "F": self.params.formation**2}

    # -- server ----------------------------------------------------------------------------------------------------

    def asks(self, r: Round) -> bool:
        """Whether clients send their sets in this round: the first one of any client, or one of renewal."""
        before = {k for i in range(r.index) for k in self.spec.participants(i, self.params.fraction)}
        return not set(r.clients) <= before or bool(self.params.refresh and r.index % self.params.refresh == 0)

    def exchange_condensed(self) -> Script:
        """Collect the clients' sets: ``yield from``. The server keeps the last set of every client."""
        fault = partial(find_fault, modality=self.spec.inputs.modality)
        sets = yield Exchange(self.share_condensed, aggregator=gather, dims=self.dims, fault=fault)
        for k, payload in sets.items():
            self.server |= {f"set{k}/{name}": t.cpu() for name, t in payload.items()}

    def joined_sets(self, without: int | None = None) -> Payload:
        """All clients' synthetic samples (M×shape) and labels (M) but one client's: what others receive."""
        kept = Payload(self.server)
        sets = [kept.under(f"set{k}") for k in range(len(self.spec.clients)) if k != without]
        return join_sets([found for found in sets if found], self.spec.inputs)

    # -- clients ---------------------------------------------------------------------------------------------------

    @sends(condensed_fields)
    def share_condensed(self, client: Client) -> Payload:
        """The client's synthetic samples, which of its classes they stand for, and its predictions for them."""
        inputs, recipe, owned = self.spec.inputs, self.recipe, client.class_counts() >= self.params.smallest_class
        start = start_noise(len(owned), inputs.shape, recipe, inputs.modality, client.seed).to(client.device)
        if "own_set" in client.memory:
            start = unpack(client.stored_tensor("own_set"))
        own = self.own_embedder(client) if self.params.embedders != "random" else None

        def goal(step: int) -> Goal:
            change = siamese(inputs.modality, generator(client.seed, "siamese", client.round, step))
            alone = self.params.embedders == "own" or step % 2
            embed = own if own is not None and alone else self.random_embedder(client, step)
            draw = client.generator("condense", step)
            return Goal(embed, change, private_means(client.private, owned, embed, change, recipe.batch, draw))

        made, loss = condense(start, goal, owned, recipe, inputs.modality) if owned.any() else (start, start.mean())
        client.log_loss("condense", loss)
        client.memory["own_set"] = packed = pack(made, inputs.modality)
        soft = {"soft": self.own_predictions(client, packed)} if self.params.soft_labels else {}
        return Payload({"condensed": packed, "owned": owned.float(), **soft})

    @property
    def recipe(self) -> Recipe:
        p = self.params
        return Recipe(p.per_class, p.formation, p.condense_steps, p.condense_lr, p.condense_batch)

    def random_embedder(self, client: Client, step: int) -> Embed:
        inputs, place = self.spec.inputs, (client.round, step)
        network = random_network(inputs, self.params.network_width, client.seed, *place).to(client.device)
        return lambda samples: network(for_network(samples, inputs.modality))

    def own_embedder(self, client: Client) -> Embed:
        model, transform = client.frozen_copy(client.snapshot()), self.transform(client)
        return lambda samples: model.features(transform(samples)).float()

    def transform(self, client: Client) -> Embed:
        """From the space of condensation to what a model takes."""
        transform = client.private.transform if self.spec.inputs.modality == "image" else None
        return (lambda samples: samples) if transform is None else transform

    @torch.no_grad()
    def own_predictions(self, client: Client, packed: Tensor) -> Tensor:
        """C×N×f²×C probabilities."""
        client.model.eval()
        samples = unpack(decode(packed.flatten(0, 1), self.params.formation))
        z = client.logits(self.transform(client)(samples))
        return z.softmax(dim=1).view(*packed.shape[:2], -1, z.shape[1])
