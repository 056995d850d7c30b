"""What the server needs from an engine and from a method; `fedchoir.engines` and `fedchoir.methods` implement it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from fedchoir.core.actions import Action, Round, Script
from fedchoir.core.exchange import Reply
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.scores import Detail, Evaluation
from fedchoir.core.settings import Settings

ReadState = Callable[[str], dict[str, Tensor]]
"""Reads one named state of a checkpoint."""


class Engine(Protocol):
    """Runs actions on clients, wherever they are. An engine knows no method."""

    seconds: dict[str, float]

    @property
    def notes(self) -> Sequence[str]:
        """What the result should say about this run."""

    def execute(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> Iterator[Reply]:
        """Send each client its actions as one message and yield the replies as they arrive."""

    def evaluate(
        self, weights: dict[str, Tensor] | None, round_index: int, detail: Detail
    ) -> Sequence[Evaluation | None]:
        """The evaluation of every client; None where there is none. ``weights`` are those of a global model, None where
        clients evaluate their own."""

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """What a checkpoint must hold, by name; None for a state that the last checkpoint already holds."""

    def saved(self, folder: Path) -> None:
        """Called when a checkpoint with what `states` gave last is complete in a folder. Clients may have changed since
        then."""

    def load(self, read: ReadState) -> None:
        """Restore the clients from a checkpoint."""


@runtime_checkable
class DeferringEngine(Protocol):
    """An engine whose messages are expensive: the last steps of a round travel with the first exchange of the next.

    Their results arrive later, as `Reply.deferred` of their round.
    """

    def defer(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> None:
        """Queue actions that each client runs before its next ones."""

    def defer_evaluation(self, round_index: int, weights: dict[str, Tensor] | None, detail: Detail) -> None:
        """Queue an evaluation that each client runs after its queued actions."""

    def flush(self, round_index: int) -> Iterator[Reply]:
        """Send everything that is queued."""


@runtime_checkable
class SecureEngine(Protocol):
    """An engine whose clients can mask their payloads for secure aggregation."""

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]: ...

    def received(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> dict[int, str]:
        """A hash of everything that each client will have received in the run with these actions."""

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        """Send each client a message about keys; its response is in `Reply.keys`."""


class FederatedMethod(Protocol):
    """A federated method as the server sees it; `fedchoir.methods.base.Method` is the base class of all."""

    name: ClassVar[str]
    params: Settings
    spec: FederationSpec
    server: dict[str, Tensor]

    def setup(self) -> Script: ...

    def round(self, r: Round) -> Script: ...

    def private_epochs(self, client: int, rounds: int) -> int: ...

    def global_weights(self) -> dict[str, Tensor] | None: ...

    def server_metrics(self) -> dict[str, Any]: ...

    def model_shapes(self, client: int) -> Mapping[str, Tensor] | None: ...

    @property
    def module_shapes(self) -> dict[str, Tensor]: ...

    @classmethod
    def payload_noise(cls, params: Any) -> float: ...

    @classmethod
    def requires_individual_payloads(cls, params: Any) -> str: ...

    def models_prevent_sums(self) -> str: ...
