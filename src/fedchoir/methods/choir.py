"""Choir, this project's own method: different models that train on each other's condensed samples."""

from typing import Literal

from torch import Tensor

from fedchoir.condensation.sample_space import as_samples, decode
from fedchoir.condensation.sets import check_received
from fedchoir.core.batches import Companions
from fedchoir.data.image.color_transforms import WIDE_COLORS, recolor
from fedchoir.data.samples import Recolor
from fedchoir.losses import soft_cross_entropy
from fedchoir.methods.api import Batch, Client, Field, Round, Script, Settings, Step
from fedchoir.methods.condensation_options import CondensingParams
from fedchoir.methods.condensing import Condensing
from fedchoir.methods.server_training import missed_last_round
from fedchoir.methods.shared_ensemble import SharedEnsemble, SharedEnsembleParams
from fedchoir.payload import Payload


class ChoirParams(SharedEnsembleParams, CondensingParams):
    synthetic_share: float = Field(
        0.67, ge=0, lt=1, description="σ: share of the others' synthetic samples in every batch of the first round"
    )
    final_share: float = Field(0.05, ge=0, lt=1, description="σ of the last round, to which it falls linearly")
    recolor: Literal["wide", "none"] = Field("wide", description="images only: recolor with any colours, or not at all")
    recolor_share: float = Field(0.5, ge=0, le=1, description="ρ: share of the images that are recolored")


class Choir(SharedEnsemble, Condensing):
    """Clients exchange condensed sets once. Each trains its own model on its private samples and the others' sets.

    **Condensation.** See `CondensationPhase`. The server forwards every client's set S_j to all others, once, or every
    ``refresh`` rounds.

    **Local phase.** A batch holds private samples and, with share σ_t, samples of ∪_{j≠i} S_j, all augmented
    (``private_augment``). A share ρ of images is recolored (`recolor`). In round t of T the loss of client i is

        (1 − σ_t)·E_{(x,y)∈D_i} CE(z(x), y) + σ_t·E_{(s,y)∈∪_{j≠i} S_j} CE(z(s), y)

    with σ_t falling linearly from ``synthetic_share`` to ``final_share``. Every batch has the same number of synthetic
    samples, so the share is larger in an epoch's last batch where that has fewer private ones.

    With ``soft_labels`` the second term is the cross-entropy with the sender's prediction for s.

    **Shared model.** See `SharedEnsemble`; it is trained on the same batches.
    """

    name = "choir"
    title = "every client trains on the others' condensed samples, which are sent once; images recolored"
    Params = ChoirParams
    params: ChoirParams

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server forwards each client's synthetic samples"

    def release_obstacle(self) -> str:
        if self.params.shared_model:
            return "shared_model: its weights are trained without noise; leave it empty"
        if self.averages("before-local") or self.averages("after-local"):
            return "averaged weights, which are trained without noise: set average to never"
        return super().release_obstacle()

    def round(self, r: Round) -> Script:
        asked = self.asks(r)
        if asked:
            yield from self.exchange_condensed()
        if asked or missed_last_round(self, r):
            yield Step(self.store_sets, received={k: self.joined_sets(without=k) for k in r.clients})
        yield from self.send_shared_model()
        if self.averages("before-local"):
            yield from self.average()
        yield Step(self.local_update)
        if self.averages("after-local"):
            yield from self.average()
        yield from self.average_shared_model()

    def store_sets(self, client: Client, received: Payload) -> None:
        check_received(received, self.spec.inputs, len(self.spec.classes), self.params.formation**2)
        for name, t in received.items():
            client.memory[f"received_{name}"] = t

    def pretrain(self, client: Client) -> None:
        p, transform = self.params, self.recolor_transform(client)
        client.train(self.supervised_loss, epochs=p.pretrain_epochs, phase="pretrain", recolor=transform)

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss, recolor=self.recolor_transform(client), companions=self.companions(client))

    def companions(self, client: Client) -> Companions | None:
        """The others' synthetic samples; as many in a batch as give them their share."""
        share, formation = self.share_in(client.round), self.params.formation
        if not share or "received_samples" not in client.memory or not len(client.stored_tensor("received_labels")):
            return None
        stored = decode(client.stored_tensor("received_samples"), formation)
        labels = client.stored_tensor("received_labels").repeat_interleave(formation**2)
        samples = as_samples(stored, labels, self.spec.inputs.modality)
        soft = {"soft": client.stored_tensor("received_soft").flatten(0, 1)} if self.params.soft_labels else {}
        private = min(self.params.local_batch, len(client.private))
        return Companions(samples, max(1, round(private * share / (1 - share))), soft)

    def share_in(self, round_index: int) -> float:
        """σ_t. The last rounds are nearly private, which held-back images preferred intra-domain, not inter-domain."""
        first = self.params.synthetic_share
        last = min(self.params.final_share, first)
        return first + (last - first) * min(round_index / max(self.spec.rounds - 1, 1), 1.0)

    def recolor_transform(self, client: Client) -> Recolor | None:
        share = self.params.recolor_share
        if self.spec.inputs.modality != "image" or self.params.recolor == "none" or not share:
            return None
        colors = WIDE_COLORS.to(client.device)
        return lambda pixels, draw: recolor(pixels, colors, share, draw)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        loss = self.batch_loss(client, client.logits(batch.inputs), batch)
        if self.params.shared_model:
            loss = loss + self.batch_loss(client, client.run_module("shared_model", batch.inputs), batch)
        return loss

    def batch_loss(self, client: Client, z: Tensor, batch: Batch) -> Tensor:
        if "soft" not in batch.targets:
            return client.cross_entropy(z, batch.labels)
        soft = batch["soft"]
        private = len(z) - len(soft)
        own = client.cross_entropy(z[:private], batch.labels[:private])
        return (private * own + len(soft) * soft_cross_entropy(z[private:], soft)) / len(z)
