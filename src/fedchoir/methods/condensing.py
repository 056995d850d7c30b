"""Methods whose clients condense their private samples into a few synthetic ones and send those."""

from functools import partial

import torch
from torch import Tensor

from fedchoir.condensation.sample_space import check_modality, decode, sent_dtype, unpack
from fedchoir.condensation.sets import find_fault, join_sets
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Client, Exchange, Round, Script, Settings, gather
from fedchoir.methods.condensation_phase import CondensationPhase
from fedchoir.payload import Declaration, Payload, sends
from fedchoir.utils.errors import UsageError


def condensed_fields(method: "Condensing") -> Declaration:
    inputs, soft = method.spec.inputs, {"soft": "C N F C"} if method.params.soft_labels else {}
    shape = " ".join(map(str, inputs.shape))
    return {"condensed": f"C N {shape}:{sent_dtype(inputs.modality)}", "owned": "C", **soft}


class Condensing(CondensationPhase):
    """Clients send their condensed sets; the server keeps the last one of every client."""

    synthetic_samples = frozenset({"condensed"})

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        p = self.params
        check_modality(spec.inputs, p.formation)
        if spec.inputs.modality == "text" and p.embedders != "random":
            raise UsageError(
                f"embedders = {p.embedders!r} is not for texts, whose tokens are counted; set it to random"
            )
        if (p.soft_labels or p.embedders != "random") and not (p.pretrain_epochs or p.refresh):
            wanted = "soft_labels = true" if p.soft_labels else f"embedders = {p.embedders!r}"
            raise UsageError(f"{wanted} needs a trained model: set pretrain_epochs or refresh to 1 or more")
        if p.release_noise and (why := self.release_obstacle()):
            raise UsageError(f"release_noise = {p.release_noise:g} is not possible with {why}")

    def release_obstacle(self) -> str:
        """Which options let something else depend on private samples than the one noised release."""
        p = self.params
        if p.soft_labels or p.embedders != "random":
            return "outputs of a model that was trained without noise: set soft_labels to false and embedders to random"
        if p.refresh:
            return f"refresh = {p.refresh}: there is one release; set it to 0"
        return ""

    @classmethod
    def payload_noise(cls, params: Settings) -> float:
        return float(getattr(params, "release_noise", 0.0))

    @sends(condensed_fields)
    def share_condensed(self, client: Client) -> Payload:
        """The client's synthetic samples, which of its classes they stand for, and its predictions for them."""
        if "own_set" not in client.memory or self.renews(client.round):
            trained = self.model_is_trained(client)
            self.condense(client)
            if self.params.soft_labels:
                packed = client.stored_tensor("own_set")
                client.memory["own_soft"] = self.own_predictions(client, packed, trained)
        names = {"condensed": "own_set", "owned": "own_classes"}
        names |= {"soft": "own_soft"} if self.params.soft_labels else {}
        return Payload({sent: client.stored_tensor(kept) for sent, kept in names.items()})

    @torch.no_grad()
    def own_predictions(self, client: Client, packed: Tensor, trained: bool) -> Tensor:
        """C×N×f²×C probabilities; those of an untrained model are 1 for the class."""
        classes, per_class = packed.shape[:2]
        if not trained:
            certain = torch.eye(classes, device=client.device).view(classes, 1, 1, classes)
            return certain.repeat(1, per_class, self.params.formation**2, 1)
        client.model.eval()
        samples = unpack(decode(packed.flatten(0, 1), self.params.formation))
        z = client.logits(self.transform(client)(samples))
        return z.softmax(dim=1).view(classes, per_class, -1, classes)

    @property
    def dims(self) -> dict[str, int]:
        return {**super().dims, "N": self.params.per_class, "F": self.params.formation**2}

    # -- server ----------------------------------------------------------------------------------------------------

    def asks(self, r: Round) -> bool:
        """Whether clients send their sets in this round: one whose set is not here, or one of renewal."""
        return self.renews(r.index) or any(f"set{k}/owned" not in self.server for k in r.clients)

    def renews(self, round_index: int) -> bool:
        """Whether clients condense on in this round. In any other they send the set that they have, if asked again."""
        return bool(self.params.refresh) and round_index % self.params.refresh == 0

    def exchange_condensed(self) -> Script:
        """Collect the clients' sets: ``yield from``."""
        fault = partial(find_fault, inputs=self.spec.inputs)
        sets = yield Exchange(self.share_condensed, aggregator=gather, dims=self.dims, fault=fault)
        for k, payload in sets.items():
            self.server |= {f"set{k}/{name}": t.cpu() for name, t in payload.items()}

    def closing_notes(self) -> list[str]:
        owned = {c.name: self.server.get(f"set{k}/owned") for k, c in enumerate(self.spec.clients)}
        missing = [name for name, found in owned.items() if found is None]
        silent = [name for name, found in owned.items() if found is not None and not found.any()]
        what = "texts" if self.spec.inputs.modality == "text" else "samples"
        options = "smallest_class, private_per_synthetic, formation"
        small = f"none of their classes has {self.smallest:g} private {what} ({options})"
        whys = {"no set of theirs arrived": missing, small: silent}
        return [f"no synthetic samples of {', '.join(names)}: {why}" for why, names in whys.items() if names]

    def joined_sets(self, without: int | None = None) -> Payload:
        """All clients' synthetic samples (M×shape) and labels (M) but one client's: what others receive."""
        kept = Payload(self.server)
        sets = [kept.under(f"set{k}") for k in range(len(self.spec.clients)) if k != without]
        return join_sets([found for found in sets if found], self.spec.inputs)
