"""Methods with a public set, on condensed samples: the clients make the public set themselves."""

from dataclasses import replace
from typing import Any

import torch
from pydantic import create_model
from torch import Tensor

from fedchoir.condensation.sample_space import as_samples, check_modality, decode, sent_dtype
from fedchoir.condensation.sets import MOST, check_public, repeated
from fedchoir.core.batches import PublicView
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.data.public import PublicSet, draw_samples
from fedchoir.data.samples import Samples, unlabeled
from fedchoir.methods.api import Client, Method, Script, Settings, Step
from fedchoir.methods.condensation_options import CondensingParams
from fedchoir.methods.condensing import Condensing
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

CONDENSED = "condensed"
CHOSEN = f"public = {CONDENSED!r}"


class CondensedPublic(Condensing):
    """Before the first round every client condenses its private samples (`CondensationPhase`). All sets together,
    without labels, are the public set, which the server sends to every client.

    It has K·C·n samples, so that everyone knows the size in advance. A class that a client does not have leaves places,
    which the joined samples fill in turn. A client that joins later gets the same set.
    """

    public_set = CONDENSED

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        assert isinstance(params, CondensingParams)
        self.stored_size = len(spec.newcomers(0)) * len(spec.classes) * params.per_class
        self._received: tuple[Tensor, PublicView] | None = None
        check_modality(spec.inputs, params.formation)
        if why := self.condensed_obstacle(params):
            raise UsageError(f"{CHOSEN} is not possible with {why}")
        size = min(params.public_size, self.stored_size * params.formation**2)
        super().__init__(params, replace(spec, public_size=size))
        self.check_augmentation()
        if size < params.public_size:
            self.notes.append(f"public set {CONDENSED}: all {size} samples used, {params.public_size} requested")

    def condensed_obstacle(self, params: CondensingParams) -> str:
        """What does not go together with a condensed public set; empty where all does."""
        if not self.uses_labels:
            return f"{self.name}: its clients train without labels, and samples are condensed by class"
        if params.soft_labels:
            return "soft_labels = true: public samples have no labels; set it to false"
        if params.refresh:
            return f"refresh = {params.refresh}: the public set is sent once; set it to 0"
        if params.embedders != "random" and not params.pretrain_epochs:
            return f"embedders = {params.embedders!r} and an untrained model: set pretrain_epochs to 1 or more"
        if self.stored_size * params.formation**2 > MOST:
            return f"per_class = {params.per_class}: all clients' samples would be more than {MOST:,}; choose fewer"
        return ""

    def check_augmentation(self) -> None:
        inputs, kind = self.spec.inputs, self.params.public_augment
        example = self.as_public(torch.zeros(0, *inputs.shape, dtype=getattr(torch, sent_dtype(inputs.modality))))
        if kind not in (known := ("none", *example.augmentations)):
            raise UsageError(
                f"public_augment = {kind!r} is not possible for condensed {inputs.modality} samples; choose one of "
                f"{', '.join(known)}"
            )

    # -- what it allows --------------------------------------------------------------------------------------------

    @classmethod
    def dp_obstacle(cls, params: Any) -> str:
        return f"the samples of {CHOSEN} are made of private ones without noise"

    def release_obstacle(self) -> str:
        return f"{CHOSEN}: outputs on those samples are sent later and have no noise; set it to 0, or use choir"

    @classmethod
    def requires_individual_payloads(cls, params: Any) -> str:
        return f"with {CHOSEN} its server forwards each client's synthetic samples"

    # -- before the first round ------------------------------------------------------------------------------------

    def setup(self) -> Script:
        yield from super().setup()
        if not any(name.startswith("set") for name in self.server):  # else it is the setup of clients that join late
            yield from self.exchange_condensed()
        yield Step(self.store_public, received=Payload(samples=self.joined_public()))

    def joined_public(self) -> Tensor:
        return repeated(self.joined_sets()["samples"], self.stored_size)

    def store_public(self, client: Client, received: Payload) -> None:
        if "samples" in received and not len(received["samples"]):
            raise UsageError(
                f"{CHOSEN} is not possible: no client has {self.smallest:g} samples of a class, which condensation "
                "needs with this smallest_class, private_per_synthetic and formation"
            )
        check_public(received, self.spec.inputs, self.stored_size)
        client.memory["public_samples"] = received["samples"]

    # -- the public set --------------------------------------------------------------------------------------------

    def received_public(self, client: Client) -> PublicView:
        """Clients of one process that have the same samples share one view, as of any public set."""
        stored = client.stored_tensor("public_samples")
        if self._received is None or not torch.equal(self._received[0], stored):
            samples = self.as_public(stored.cpu())
            public = PublicSet(CONDENSED, samples, (), samples.digest())
            view = PublicView(public, seed=client.seed, kind=self.params.public_augment, device=client.device)
            self._received = stored, view
        return self._received[1]

    def as_public(self, stored: Tensor) -> Samples:
        images = decode(stored, self.params.formation)
        samples = as_samples(images, unlabeled(len(images)), self.spec.inputs.modality)
        return draw_samples(samples, self.params.public_size, self.spec.seed)


_MADE: dict[type[Method], type[Method]] = {}


def on_condensed(method: type[Method]) -> type[Method]:
    """A method with a public set, with the same name, on the clients' condensed samples."""
    if method not in _MADE:
        own = () if issubclass(CondensingParams, method.Params) else (method.Params,)  # whose defaults win
        options = create_model(f"{method.__name__}CondensedParams", __base__=(*own, CondensingParams))
        _MADE[method] = type(f"{method.__name__}Condensed", (CondensedPublic, method), {"Params": options})
    return _MADE[method]
