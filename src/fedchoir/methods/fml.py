"""FML. Shen et al., Federated Mutual Learning, 2020."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedchoir.losses import kd
from fedchoir.methods.api import Batch, Client, Exchange, Field, Method, Round, Script, Settings, Step
from fedchoir.models import VisionModel, build
from fedchoir.payload import MODULE, Payload, sends, state_payload
from fedchoir.utils.rng import seeded


class FMLParams(Settings):
    meme: str = Field("simple_cnn", description="architecture of the small model that all clients share")
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

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        with seeded(self.spec.seed, "meme"):  # equal initial weights at all clients
            return {"meme": build(self.params.meme, len(self.spec.classes), image_size=self.spec.image_size)}

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
        own, meme = client.logits(batch.images), client.run_module("meme", batch.images)
        a, b = self.params.own_share, self.params.shared_share
        own_loss = a * cross_entropy(own, batch.labels) + (1 - a) * kd(own, meme, temperature=1.0)
        meme_loss = b * cross_entropy(meme, batch.labels) + (1 - b) * kd(meme, own, temperature=1.0)
        return own_loss + meme_loss
