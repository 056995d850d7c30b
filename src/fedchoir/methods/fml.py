"""FML. Shen et al., Federated Mutual Learning, 2020."""

from torch import Tensor, nn

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client, Exchange, Field, Method, Round, Script, Settings, Step
from fedchoir.models import Model, build
from fedchoir.models.registry import SMALL_MODELS
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class FMLParams(Settings):
    meme: str = Field(
        "auto",
        description="architecture of the small model that all clients share; auto: simple_cnn for images, mlp for "
        "tables and tensors, cnn1d for series, bag_of_embeddings for text",
    )
    own_share: float = Field(0.5, ge=0, le=1, description="α: share of cross-entropy in the own model's loss")
    shared_share: float = Field(0.5, ge=0, le=1, description="β: share of cross-entropy in the shared model's loss")


class FML(Method):
    """Each client trains its own model and a small shared one, the meme, by mutual distillation; memes are averaged.

    Own model: α·CE + (1 − α)·KL(meme ‖ own). Meme: β·CE + (1 − β)·KL(own ‖ meme). Both take one step per batch, each
    against the other's detached logits. The clients' own models are evaluated.
    """

    name = "fml"
    title = "mutual distillation with a small shared model, which is averaged"
    paper = "Shen et al., 2020"
    Params = FMLParams
    params: FMLParams
    streams = {"upload_meme": "send"}  # frozen stream name

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        with seeded(self.spec.seed, "meme"):  # equal initial weights at all clients
            return {"meme": build(self.meme_name, len(self.spec.classes), self.spec.inputs)}

    @property
    def meme_name(self) -> str:
        return SMALL_MODELS[self.spec.inputs.modality] if self.params.meme == "auto" else self.params.meme

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download_meme, received=Payload(self.server))
        if self.averages("before-local"):
            yield from self.average()
        yield Step(self.local_update)
        if self.averages("after-local"):
            yield from self.average()
        self.server = dict((yield Exchange(self.upload_meme, aggregator=self.weighting)))

    @sends(meme=MODULE)
    def upload_meme(self, client: Client) -> Payload:
        return state_payload("meme", client.modules["meme"].state_dict())

    def download_meme(self, client: Client, received: Payload) -> None:
        client.modules["meme"].load_state_dict(received.under("meme"))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        own, meme = client.logits(batch.inputs), client.run_module("meme", batch.inputs)
        a, b = self.params.own_share, self.params.shared_share
        own_loss = a * client.cross_entropy(own, batch.labels) + (1 - a) * kd(own, meme, temperature=1.0)
        meme_loss = b * client.cross_entropy(meme, batch.labels) + (1 - b) * kd(meme, own, temperature=1.0)
        return own_loss + meme_loss
