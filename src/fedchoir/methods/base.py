"""The base classes of all methods: explicit phases over explicit state. A method knows no engine."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from fedchoir.core.actions import Exchange, PublicBatch, Received, Round, Script, Step
from fedchoir.core.aggregation import Aggregator, Mean, mean
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.evaluation import Predict, evaluate
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.scores import Detail, TestScore
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.samples import Samples
from fedchoir.models import Model, build
from fedchoir.models.registry import SMALL_MODELS
from fedchoir.models.spec import ModelSpec
from fedchoir.payload import MODEL, Payload, sends, state_payload
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class Method:
    """A federated method. Subclasses define a round, what clients send, and the losses."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Earlier names, which are still accepted. Not inherited."""
    title: ClassVar[str]
    """One line for `fedchoir list methods`."""
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Settings]] = Settings
    needs_public: ClassVar[bool] = False
    public_set: ClassVar[str] = ""
    """The name of the public set that clients make before the first round (`methods.condensed_public`); empty: none."""
    heterogeneous: ClassVar[bool] = True
    """Whether clients may have different architectures."""
    uses_labels: ClassVar[bool] = True
    """Whether clients train their classifier on labels. Self-supervised methods do not: a probe is evaluated."""
    supports_dp: ClassVar[bool] = False
    """Whether the local loss is a mean over single samples and nothing else that is sent depends on private samples:
    then DP-SGD in the local phase bounds what leaves a client. Never inherited: each method states it."""
    with_private_statistics: ClassVar[frozenset[str]] = frozenset()
    """Payloads about public samples that also hold numbers computed from private samples, such as accuracies."""
    synthetic_samples: ClassVar[frozenset[str]] = frozenset()
    """Payloads that hold synthetic samples made of private ones. A site's policy can forbid them."""
    symmetric: ClassVar[frozenset[str]] = frozenset()
    """Payload entries that are symmetric matrices: n×n, or n×(n−1) without the diagonal. Compression sends one half."""
    changes: ClassVar[frozenset[str]] = frozenset()
    """Payload entries whose values add up over the rounds, such as updates of weights: what top-k leaves out of them
    is sent later."""
    evaluates_per_client: ClassVar[bool] = False
    """Whether a global model's score depends on the client, so that every client must evaluate it."""
    begins_with_global: ClassVar[bool] = False
    """Whether a client loads the global weights, if there are any, before any other action, so that its own model need
    not be stored. Not inherited by a subclass with its own ``round`` or ``download``."""
    streams: ClassVar[Mapping[str, str]] = {}
    """Random-stream names of this method's actions, where they differ from the functions' names (`core.actions`)."""
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options that a profile (``"paper"``) sets, or sets in one scenario (``"paper:digits"``). For plug-ins: the
    methods of this package have theirs in ``experiments/profiles.toml``."""

    pool: tuple[Samples, ...] = ()
    """In a simulation, the training samples of all clients, for a method that ``evaluates_on_pool``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.supports_dp = vars(cls).get("supports_dp", False)
        if {"round", "download"} & vars(cls).keys() and "begins_with_global" not in vars(cls):
            cls.begins_with_global = False

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        self.params = params
        self.spec = spec
        self.server: dict[str, Tensor] = {}  # the server's state between rounds
        self.notes: list[str] = []  # for the result: what was decided from the data
        if params.dp_noise and (why := self.dp_obstacle(params)):
            raise UsageError(f"dp_noise = {params.dp_noise:g} is not possible with {self.name}: {why}; set it to 0")
        weighted = params.class_weights != "none"
        if weighted and params.dp_noise:
            raise UsageError("class_weights is not possible with dp_noise: weights are counts of private samples")
        if weighted and (why := self.class_weights_obstacle(params)):
            raise UsageError(f"class_weights = {params.class_weights!r} is not possible with {self.name}: {why}")
        if params.eval_model == "own" and (why := self._own_models_obstacle()):
            raise UsageError(f"eval_model = 'own' is not possible with {why}")
        self.check_models()

    def check_models(self) -> None:
        """Raise `UsageError` unless the method can run with the clients' models."""
        if not self.heterogeneous and not self.spec.homogeneous:
            raise UsageError(
                f"{self.name} averages weights, so all clients need one architecture, but they have "
                f"{', '.join(sorted({c.model for c in self.spec.clients}))}; give a single one, or use a method for "
                "different architectures such as fccl+"
            )

    def check_private(self, samples: Samples) -> None:
        """Raise `UsageError` unless the method can run with these private samples of a client. A site's server gets
        its text, so it names options and no samples."""

    def _own_models_obstacle(self) -> str:
        """Why clients have no models of their own at the end of a round; empty where they have."""
        if self.params.fraction < 1:
            return f"fraction = {self.params.fraction:g}: idle clients have no model of that round; set fraction to 1"
        if self.averages("after-local"):
            return "average = 'after-local': a round ends with the average; set average to before-local"
        return ""

    # -- what a method allows --------------------------------------------------------------------------------------

    @classmethod
    def dp_obstacle(cls, params: Any) -> str:
        """Why DP-SGD in the local phase would not bound what leaves a client; empty where it does."""
        return "" if cls.supports_dp else "its local loss or its payload is not a function of single samples"

    @classmethod
    def payload_noise(cls, params: Any) -> float:
        """σ of the noise in a client's one release of numbers about its private samples; 0: none. With it nothing else
        that is sent depends on private samples. (DP-SGD is another thing: ``dp_noise``.)"""
        return 0.0

    @classmethod
    def class_weights_obstacle(cls, params: Any) -> str:
        """Why the local loss cannot weight classes; empty where it can."""
        return "" if cls.uses_labels else "its clients train without labels"

    @classmethod
    def requires_individual_payloads(cls, params: Any) -> str:
        """Why the server must see each client's payload; empty where means are enough (secure aggregation)."""
        return ""

    def models_prevent_sums(self) -> str:
        """Why means are not enough with the clients' models, although they are with others; empty where they are."""
        return ""

    # -- what a method defines -------------------------------------------------------------------------------------

    def setup(self) -> Script:
        """Before the first round."""
        if self.params.pretrain_epochs:
            yield Step(self.pretrain)

    def closing_notes(self) -> list[str]:
        """For the result, from the server's state after the last round: the same after a resume."""
        return []

    def round(self, r: Round) -> Script:
        """One round: yields steps and exchanges."""
        raise NotImplementedError

    def private_epochs(self, client: int, rounds: int) -> int:
        """Epochs on private samples in the setup and the first ``rounds`` rounds: the ε of a run counts them."""
        return self.params.pretrain_epochs + rounds * self.params.epochs_of(client)

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        """Auxiliary modules (``client.modules``) that are trained with the client's model."""
        return {}

    def received_public(self, client: Client) -> PublicView:
        """The public samples in the memory of a client, for a method with a ``public_set``."""
        raise NotImplementedError

    def global_weights(self) -> dict[str, Tensor] | None:
        """The weights of the global model to evaluate; None where clients evaluate their own models. A client's own
        weights complete those that are a part of the model (set ``evaluates_per_client``)."""
        return None

    def client_weights(self, client: int, weights: dict[str, Tensor], round_index: int) -> dict[str, Tensor]:
        """What one client gets of the global weights: all, unless its model is smaller."""
        return weights

    @property
    def dims(self) -> dict[str, int]:
        """The method's own dimensions in payload declarations."""
        return {}

    @property
    def largest_dims(self) -> dict[str, int]:
        """Dimensions that depend on values, with the sizes at which a payload is largest."""
        return {}

    def server_metrics(self) -> dict[str, Any]:
        """Metrics that the server computes in a round, for the round's event."""
        return {}

    def evaluate(self, client: Client, tests: Iterable[Samples], detail: Detail = "accuracy") -> list[TestScore]:
        """The scores of the client's model on each test set."""
        predict = self.predictor(client)
        client.model.eval()
        client.modules.eval()
        spec, transform = self.spec, client.private.transform
        return evaluate(predict, tests, detail, top_k=spec.top_k, transform=transform, seed=spec.seed)

    @property
    def evaluates_on_pool(self) -> bool:
        """Whether `predictor` needs the training samples of all clients. Real sites have their own alone."""
        return False

    def predictor(self, client: Client) -> Predict:
        """What `evaluate` evaluates: the client's model as it is, or with what it needs to predict classes."""
        return lambda inputs: self.predict(client, inputs)

    def predict(self, client: Client, inputs: Tensor) -> Tensor:
        """The client's logits or log-probabilities, B×C."""
        return client.predict(inputs)

    def inference_module(self, model: Model, modules: nn.ModuleDict) -> nn.Module:
        """A client's trained model: the module whose logits or log-probabilities `predict` gives."""
        return model

    # -- models ----------------------------------------------------------------------------------------------------

    def build_model(self, name: str) -> Model:
        """A client's model from its name, with random weights unless its options say otherwise."""
        return build(name, len(self.spec.classes), self.spec.inputs)

    def _initial_model(self) -> Model:
        spec, name = self.spec, self.spec.clients[0].model
        if not spec.homogeneous and ModelSpec.parse(name).kind == "remote":
            name = SMALL_MODELS[spec.inputs.modality]  # what clients with different models send does not depend on them
        model = self.build_model(name)
        if self.params.dp_noise:
            without_batchnorm(model)
        return model

    @cached_property
    def architecture(self) -> Model:
        """The shared architecture with the clients' initial weights, in eval mode on the CPU."""
        with seeded(self.spec.seed, "model", "shared"):
            return self._initial_model().eval()

    def model_shapes(self, client: int) -> Mapping[str, Tensor] | None:
        """The state dict of the model whose weights this client sends, for checking payloads that hold them: by default
        that of the shared architecture. None where there is none."""
        return self._shared_shapes

    @cached_property
    def _shared_shapes(self) -> dict[str, Tensor] | None:
        return self.architecture.state_dict() if self.spec.homogeneous else None

    @cached_property
    def module_shapes(self) -> dict[str, Tensor]:
        """The state dict of the auxiliary modules, for checking payloads that hold them."""
        with seeded(self.spec.seed, "model", "shared"):
            return nn.ModuleDict(self.extra_modules(self._initial_model())).state_dict()

    # -- phases that many methods share ----------------------------------------------------------------------------

    def pretrain(self, client: Client) -> None:
        client.train(self.supervised_loss, epochs=self.params.pretrain_epochs, phase="pretrain")

    def local_update(self, client: Client) -> None:
        """The local phase: epochs on private data."""
        client.train(self.local_loss)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss on a private batch."""
        return self.supervised_loss(client, batch)

    def supervised_loss(self, client: Client, batch: Batch) -> Tensor:
        return client.cross_entropy(client.logits(batch.inputs), batch.labels)

    def average(self) -> Script:
        """Average weights and BatchNorm buffers: ``yield from self.average()``."""
        weights = yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)
        yield Step(self.download, received=weights)

    def averages(self, when: str) -> bool:
        """Whether this point of the round averages weights: only where all clients have one architecture."""
        choice = "before-local" if self.params.average == "auto" else self.params.average
        return self.spec.homogeneous and choice == when

    @sends(weights=MODEL)
    def upload(self, client: Client) -> Payload:
        return state_payload("weights", client.model.state_dict())

    def download(self, client: Client, received: Payload) -> None:
        client.model.load_state_dict(received.under("weights"))

    def weighting(self) -> Aggregator:
        """A weighted mean of the clients' weights. Called at the first reply, so that a site that joined counts."""
        uniform = self.params.weighting == "uniform"
        return Mean(None if uniform else [info.train for info in self.spec.clients])


class PublicMethod(Method):
    """Methods whose clients exchange payloads about public batches.

    A round: for each public batch ``share → aggregate → public_update``, then ``local_update``.
    """

    needs_public = True

    def round(self, r: Round) -> Script:
        yield from self.public_phase(r)
        if self.averages("before-local"):
            yield from self.average()
        yield Step(self.local_update)
        if self.averages("after-local"):
            yield from self.average()

    def public_phase(self, r: Round) -> Script:
        """Clients send a payload about each public batch and learn from the aggregate."""
        for batches in r.public_batches():
            aggregated = yield Exchange(self.share, batches, aggregator=self.aggregator, dims=self.dims)
            yield Step(self.public_update, batches, self.consensus(aggregated))

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        """A client's payload about a public batch."""
        _, z = client.public_outputs(batch)
        return Payload(logits=z)

    def aggregator(self) -> Aggregator:
        """How the server aggregates payloads."""
        return mean()

    def consensus(self, aggregated: Any) -> Received:
        """What clients receive, from the list of aggregates, one per public batch."""
        return aggregated

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        """One optimiser step on a public batch."""
        client.public_step(batch, self.public_loss, **consensus)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss on a public batch; the aggregate comes with the batch: ``batch["logits"]``."""
        raise NotImplementedError
