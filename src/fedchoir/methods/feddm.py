"""FedDM. Xiong et al., FedDM: Iterative Distribution Matching for Communication-Efficient Federated Learning, 2023."""

from copy import deepcopy

from torch import Tensor

from fedchoir.condensation.sample_space import as_samples, decode
from fedchoir.methods.api import Client, Field, Round, Script, Settings, Step
from fedchoir.methods.condensation_options import CondensingParams
from fedchoir.methods.condensing import Condensing
from fedchoir.payload import Payload, state_payload
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class FedDMParams(CondensingParams):
    refresh: int = Field(1, ge=0, description="condense on and send again every so many rounds; 0: once")
    condense_steps: int = Field(40, ge=1, description="steps of a condensation, each under another network")
    server_epochs: int = Field(10, ge=0, description="passes over all condensed samples at the server in each round")


class FedDM(Condensing):
    """Clients send condensed sets; the server trains one model on them.

        w ← argmin_w Σ_i E_{(s,y)∈S_i} CE(f_w(s), y)

    by ``server_epochs`` epochs a round with the optimiser, batches and augmentation of the local phase, on from the
    last round's weights. Clients condense on from their last set.

    The paper matches class means of features and logits under weights near the global model's, w + ρε, and starts every
    set from noise or samples. Here embedders are random networks, as in distribution matching, or the global model
    itself (``embedders``: own, or both in turn). Clients train no model.
    """

    name = "feddm"
    title = "one model trained at the server on the clients' condensed samples"
    paper = "Xiong et al., CVPR 2023"
    Params = FedDMParams
    params: FedDMParams
    heterogeneous = False

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "its server trains on each client's synthetic samples"

    def check_models(self) -> None:
        if not self.spec.homogeneous:
            raise UsageError(f"{self.name} trains one model at the server, so all clients need one architecture")

    def _own_models_obstacle(self) -> str:
        return f"{self.name}: its server alone trains a model"

    def setup(self) -> Script:
        yield from ()

    def private_epochs(self, client: int, rounds: int) -> int:
        return 0

    def model_is_trained(self, client: Client) -> bool:
        return "own_set" in client.memory  # of an earlier round, after which the server trained

    def round(self, r: Round) -> Script:
        weights = Payload(self.server).only("weights")
        if weights and self.params.embedders != "random":
            yield Step(self.download, received=weights)
        if self.asks(r):
            yield from self.exchange_condensed()
        self.train_global(r)

    def train_global(self, r: Round) -> None:
        """The server trains like a client whose private samples are all condensed sets."""
        p, received = self.params, self.joined_sets()
        model = deepcopy(self.architecture)
        model.load_state_dict(Payload(self.server).under("weights") or self.architecture.state_dict())
        if len(received["labels"]):
            labels = received["labels"].repeat_interleave(p.formation**2)
            samples = as_samples(decode(received["samples"], p.formation), labels, self.spec.inputs.modality)
            number, seed = len(self.spec.clients), self.spec.seed
            trained = Client(number, "server", model, samples, settings=p, seed=seed, rounds=r.rounds)
            trained.begin(r.index)
            trained.phase = "server_update"
            with seeded(seed, "server update", r.index):
                trained.train(self.supervised_loss, epochs=p.server_epochs, phase="server")
        self.server |= state_payload("weights", model.state_dict())

    def global_weights(self) -> dict[str, Tensor] | None:
        return Payload(self.server).under("weights")
