"""Averaging of networks of different widths: each client trains a part of one network, the widest client's."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import NoReturn

from torch import Tensor

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.sliced_mean import Place, SlicedMean
from fedchoir.methods.api import Exchange, Round, Script, Settings, Step
from fedchoir.methods.fedavg import FedAvg
from fedchoir.models import Model
from fedchoir.models.slices import is_narrower, is_part, slice_index
from fedchoir.models.spec import ModelSpec
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


class SlicedModel(FedAvg):
    """FedAvg in which a client has a window of the channels of every layer, from `shift` on.

    A number of the global weights becomes the weighted mean over the clients that have it; one that no client of the
    round has stays. The server averages buffers (BatchNorm's statistics) over the clients of one width, because a
    channel has other statistics in a narrow network. Clients start from slices of the widest client's initial network,
    and evaluate their own slices of the global one.
    """

    begins_with_global = True
    evaluates_per_client = True

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        return "payloads of different widths cannot be added up under masks"

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        if params.robust != "mean":
            raise UsageError(f"robust = {params.robust!r} is not possible with {self.name}: it takes means of slices")

    def setup(self) -> Script:
        yield Step(self.download, received=self.slices(range(len(self.spec.clients)), 0))
        yield from super().setup()

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download, received=self.slices(r.clients, r.index))
        yield Step(self.local_update)
        self.server = dict((yield Exchange(self.upload, aggregator=partial(self.sliced_mean, r.index))))

    def shift(self, round_index: int, width: int) -> int:
        """The first channel of the window of a layer with so many channels."""
        return 0

    # -- the global network and its slices -------------------------------------------------------------------------

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The global network: ``weights/NAME``, and the buffers of each width, ``buffersNUMBER/NAME``."""
        if self.server:
            return self.server
        initial, buffers = self.architecture.state_dict(), dict(self.architecture.named_buffers())
        groups = ["weights", *(f"buffers{number}" for number in range(len(self.widths)))]
        return {f"{g}/{n}": t for g in groups for n, t in initial.items() if g == "weights" or n in buffers}

    def places(self, round_index: int, client: int) -> dict[str, Place]:
        """Where the tensors of a client belong in `state`."""
        learned, shift = dict(self.architecture.named_parameters()), partial(self.shift, round_index)
        full, buffers = self.architecture.state_dict(), f"buffers{list(self.widths).index(self.width_of(client))}"
        return {
            f"weights/{n}": (
                f"{'weights' if n in learned else buffers}/{n}",
                slice_index(full[n].shape, t.shape, shift),
            )
            for n, t in self.model_shapes(client).items()
        }

    def client_weights(self, client: int, weights: Mapping[str, Tensor], round_index: int) -> dict[str, Tensor]:
        places = self.places(round_index, client)
        # A site knows its own slice alone, with the buffers among the weights.
        full = {name: weights[target if target in weights else name] for name, (target, _) in places.items()}
        return {name.removeprefix("weights/"): full[name][index] for name, (_, index) in places.items()}

    def slices(self, clients: Sequence[int], round_index: int) -> dict[int, Payload]:
        """What each client downloads; clients of one width share it."""
        payloads = {}
        for width, k in {self.width_of(k): k for k in clients}.items():
            own = self.client_weights(k, self.state, round_index)
            payloads[width] = Payload({f"weights/{n}": t for n, t in own.items()})
        return {k: payloads[self.width_of(k)] for k in clients}

    def sliced_mean(self, round_index: int) -> SlicedMean:
        sizes = None if self.params.weighting == "uniform" else [info.train for info in self.spec.clients]
        return SlicedMean(self.state, partial(self.places, round_index), sizes)

    def global_weights(self) -> dict[str, Tensor] | None:
        return dict(self.server) or None if self.params.eval_model == "global" else None

    # -- widths ----------------------------------------------------------------------------------------------------

    def width_of(self, client: int) -> str:
        """The architecture of a client, without the options of its weights."""
        return ModelSpec.parse(self.spec.clients[client].model).architecture

    @cached_property
    def widths(self) -> dict[str, Model]:
        """A model of every architecture that clients have."""
        names = dict.fromkeys(self.width_of(k) for k in range(len(self.spec.clients)))
        with seeded(self.spec.seed, "widths"):
            return {name: self.build_model(name).eval() for name in names}

    @cached_property
    def widest(self) -> str:
        """The architecture of the global network."""
        return max(self.widths, key=lambda name: sum(p.numel() for p in self.widths[name].parameters()))

    def _initial_model(self) -> Model:
        return self.build_model(
            next(c.model for k, c in enumerate(self.spec.clients) if self.width_of(k) == self.widest)
        )

    def model_shapes(self, client: int) -> Mapping[str, Tensor]:
        return self._shapes[self.width_of(client)]

    @cached_property
    def _shapes(self) -> dict[str, Mapping[str, Tensor]]:
        return {name: model.state_dict() for name, model in self.widths.items()}

    def check_models(self) -> None:
        """Refuse a model that is no part of the widest one."""
        wide, narrow = self._shapes[self.widest], [name for name in self.widths if name != self.widest]
        for name in narrow:
            if not is_narrower(wide, self._shapes[name]):
                self._refuse(name, "its layers are not narrower ones")
        for name in narrow:
            if not is_part(self.widths[self.widest], self.widths[name], partial(self.shift, 1), self.spec.inputs):
                self._refuse(name, "one window cannot cut all its layers alike")

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise UsageError(
            f"{self.name} averages slices of one architecture, and {name} is no part of {self.widest}: {why}"
        )
