"""The base of every method: explicit phases over explicit state. A method knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedchoir.core.actions import Exchange, PublicBatch, Received, Round, Script, Step
from fedchoir.core.aggregation import Aggregator, Mean, mean
from fedchoir.core.client import Client
from fedchoir.core.evaluation import accuracies
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.image.image_set import ImageSet
from fedchoir.models import VisionModel, build
from fedchoir.payload import MODEL, Payload, sends, state_payload
from fedchoir.privacy.dp import check_method
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class Method:
    """One federated method. Subclasses say what happens in a round, what clients say, and what the losses are."""

    name: ClassVar[str]
    title: ClassVar[str]
    """One line for `fedchoir list methods`."""
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Settings]] = Settings
    needs_public: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = True
    """Whether clients may have different architectures."""
    evaluates_per_client: ClassVar[bool] = False
    """Whether a global model must be scored at every client: where the score depends on the client's own data."""
    begins_with_global: ClassVar[bool] = False
    """Whether a client, whenever it is asked something, first takes over the global weights if there are any: then
    nothing of its model need be kept. A subclass with a round or a download of its own must say so anew."""
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"lr_schedule": "constant", "local_batch": 256, "public_batch": 512},
        "official": {"weighting": "uniform", "local_weight_decay": 1e-5},
        "official:office-caltech": {"test_split": "whole-folder"},
        "official:office31": {"test_split": "whole-folder"},
        "official:office-home": {"test_split": "whole-folder"},
    }
    """Options that a profile sets, for all scenarios or for one; a subclass adds to those of its base."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if {"round", "download"} & vars(cls).keys() and "begins_with_global" not in vars(cls):
            cls.begins_with_global = False

    def __init__(self, params: Settings, task: FederationSpec) -> None:
        self.params = params
        self.task = task
        self.server: dict[str, Tensor] = {}  # what the server keeps from round to round
        check_method(self.name, params)
        if params.eval_model == "own":
            self._check_own()
        if not self.heterogeneous and not task.homogeneous:
            raise UsageError(
                f"{self.name} exchanges weights, so all clients need one architecture, but --models gives "
                f"{', '.join(sorted({c.model for c in task.clients}))}; give a single name, or use a method for "
                "different models such as fccl+"
            )

    def _check_own(self) -> None:
        """Whether every client has a model of its own at the end of every round."""
        why = ""
        if self.params.fraction < 1:
            why = f"fraction = {self.params.fraction:g}: who sits out has no model of that round; set fraction to 1"
        elif self.averages("after-local"):
            why = "average = 'after-local': a round ends with the average; set average to before-local"
        if why:
            raise UsageError(f"tested = 'own' is not possible with {why}")

    @classmethod
    def profile(cls, name: str, scenario: str) -> dict[str, Any]:
        """The options that a profile sets for this method in a scenario; the default, ``fixed``, sets none."""
        options: dict[str, Any] = {}
        for key in (name, f"{name}:{scenario}"):
            for base in reversed(cls.__mro__):
                options |= vars(base).get("profiles", {}).get(key, {})
        return options

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        """Why the server must see single answers, in words; empty where means are all it needs (secure sums)."""
        return ""

    # -- what a method may define ----------------------------------------------------------------------------------

    def setup(self) -> Script:
        """Before the first round."""
        if self.params.pretrain_epochs:
            yield Step(self.pretrain)

    def round(self, r: Round) -> Script:
        """One round: yields steps and exchanges."""
        raise NotImplementedError

    def extra_modules(self, model: VisionModel) -> dict[str, nn.Module]:
        """Modules that a client holds beside its model (``client.parts``), trained with it."""
        return {}

    def global_weights(self) -> dict[str, Tensor] | None:
        """The weights of the one model to evaluate, for methods that end a round with a global model. None where the
        clients' own models are to be evaluated."""
        return None

    @cached_property
    def architecture(self) -> VisionModel:
        """The shared architecture with the weights that clients start from, in eval mode and on the CPU: for a server
        that must take apart, or apply, what clients send. Only where all models are alike."""
        task = self.task
        with seeded(task.seed, "model", "shared"):
            return build(task.clients[0].model, len(task.classes), image_size=task.image_size).eval()

    @cached_property
    def module_shapes(self) -> dict[str, Tensor]:
        """The state of a client's parts, for checking those that arrive. Only parts that all have alike are sent."""
        task = self.task
        with seeded(task.seed, "model", "shared"):
            model = build(task.clients[0].model, len(task.classes), image_size=task.image_size)
            return nn.ModuleDict(self.extra_modules(model)).state_dict()

    def server_metrics(self) -> dict[str, Any]:
        """What the server can say about the round just played, beside accuracies: goes into the round's event."""
        return {}

    def evaluate(self, client: Client, tests: Iterable[ImageSet]) -> list[float]:
        """How good the client's model is on several test sets, in percent."""
        client.model.eval()
        client.modules.eval()
        return accuracies(lambda images: self.predict(client, images), tests, self.task.top_k)

    def predict(self, client: Client, images: Tensor) -> Tensor:
        """What the client says an image is, as logits or probabilities: by its own model alone."""
        return client.predict(images)

    @property
    def dims(self) -> dict[str, int]:
        """The method's own dimensions in the declarations of what its clients send."""
        return {}

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
        return F.cross_entropy(client.logits(batch.images), batch.labels)

    def average(self) -> Script:
        """Parameter averaging, weights and BatchNorm buffers: ``yield from self.average()``."""
        weights = yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)
        yield Step(self.download, received=weights)

    def averages(self, when: str) -> bool:
        """Whether models are averaged at this point of the round: only where all have one architecture."""
        choice = "before-local" if self.params.average == "auto" else self.params.average
        return self.task.homogeneous and choice == when

    @sends(weights=MODEL)
    def upload(self, client: Client) -> Payload:
        return state_payload("weights", client.model.state_dict())

    def download(self, client: Client, received: Payload) -> None:
        client.model.load_state_dict(received.under("weights"))

    def weighting(self) -> Aggregator:
        """How weights are averaged; called when answers come in, so that a site that has just joined counts."""
        uniform = self.params.weighting == "uniform"
        return Mean(None if uniform else [card.train for card in self.task.clients])


Voice = Callable[[Client, PublicBatch], Payload]
"""What a client says about a public batch."""


class PublicMethod(Method):
    """Methods whose clients learn from what the others say about the public set, and then practise at home."""

    needs_public = True
    profiles = {
        "official": {"public_optimizer_lifetime": "batch", "passes": "two", "normalisation": "swapped"},
        "official:office-caltech": {"public_batch": 128},
        "official:office-home": {"public_epochs": 2, "public_batch": 176},
    }

    def round(self, r: Round) -> Script:
        yield from self.public_phase(r)
        if self.averages("before-local"):
            yield from self.average()
        yield Step(self.local_update)
        if self.averages("after-local"):
            yield from self.average()

    def public_phase(self, r: Round) -> Script:
        """The public phase: clients speak about a batch, and learn from what the server makes of it."""
        for batches in r.public_batches():
            aggregated = yield Exchange(self.voice, batches, aggregator=self.aggregator, dims=self.dims)
            yield Step(self.public_update, batches, self.consensus(aggregated))

    @property
    def voice(self) -> Voice:
        """What clients speak with; a method whose options change what must travel has several voices."""
        return self.share

    def aggregator(self) -> Aggregator:
        """How the server combines what clients say."""
        return mean()

    def consensus(self, aggregated: Any) -> Received:
        """What clients hear of it; ``said`` has one combined value a batch."""
        return aggregated

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        _, z = client.public_outputs(batch)
        return Payload(logits=z)

    def public_update(self, client: Client, batch: PublicBatch, consensus: Payload) -> None:
        client.public_step(batch, self.public_loss, **consensus)

    def public_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss on a public batch; what the others said comes with the batch: ``batch["logits"]``."""
        raise NotImplementedError
