"""The clients of the local engine, however many: those at work are awake, the others rest.

A client that was never asked anything is only a number: all about it is derived when it is looked at. One that goes to
rest leaves its state behind, in memory as far as the budget goes, else in a file, and its modules to the next; one that
keeps nothing from round to round leaves no state. Numbers do not depend on who was awake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.client_state import State, state_without_model
from fedchoir.core.training import Trainer
from fedchoir.data.scenario import ClientData
from fedchoir.engines.local.client_factory import ClientModules, limit_activation_memory, new_client, new_modules
from fedchoir.engines.local.state_cache import Read, StateCache, file_name
from fedchoir.methods.base import Method
from fedchoir.models import VisionModel

AT_HAND = 32  # clients that stay awake on a CPU; waking another costs a copy of its model
SPARE = 2  # unused models of an architecture
KEPT = "clients"  # what a checkpoint calls the list of clients that it holds


class ClientPool(Sequence[Client]):
    """All clients by their number. Whoever is looked at is awake, at least until others are."""

    def __init__(
        self,
        method: Method,
        data: Sequence[ClientData],
        view: PublicView | None,
        trainer: Trainer,
        *,
        device: torch.device,
        precision: str,
        fused: bool = False,
        budget: float,
        folder: Path | None = None,
        here: Sequence[int] | None = None,
    ) -> None:
        """``here``: the numbers of those who live in this process, where not all do."""
        self.here = tuple(range(len(data)) if here is None else here)
        self.global_elsewhere = False  # whether the server, in another process, has a global model
        self._method, self._data, self._view, self._trainer = method, data, view, trainer
        self._device, self._precision, self._fused = device, precision, fused
        self._budget = budget
        self._resting = StateCache(budget, folder)
        self._awake: OrderedDict[int, Client] = OrderedDict()  # who was looked at last is last
        self._sizes: dict[int, int] = {}  # bytes of those awake
        self._busy: tuple[int, ...] = ()
        self._kept: set[int] = set()  # who is not as it started
        self._rounds: dict[int, int] = {}  # in which round those at rest were
        self._patterns: dict[str, ClientModules] = {}  # by architecture, to be copied
        self._idle: dict[str, list[ClientModules]] = {}  # by architecture, of clients that rest: to be used again
        for first in {method.task.clients[k].model: k for k in reversed(self.here)}.values():
            self._wake((first,))  # what cannot be built is found out now, before anything is written

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, k: int) -> Client: ...

    @overload
    def __getitem__(self, k: slice) -> list[Client]: ...

    def __getitem__(self, k: int | slice) -> Client | list[Client]:
        if isinstance(k, slice):
            return self._wake(tuple(range(len(self))[k]))
        return self._wake((range(len(self))[k],))[0]

    def gather(self, clients: Sequence[int]) -> list[Client]:
        """These clients, awake all at once and about to change."""
        found = self._wake(tuple(clients))
        self._kept.update(clients)
        for k in clients:
            self._resting.changed(k)
        return found

    @property
    def pattern(self) -> VisionModel:
        """A model of the architecture that all share, or of the first client's."""
        return self._pattern(self.here[0]).model

    # -- waking and going to rest ----------------------------------------------------------------------------------

    def _wake(self, clients: tuple[int, ...]) -> list[Client]:
        for k in self._busy:
            self._sizes[k] = self._awake[k].nbytes  # work may have added to what it remembers
        self._busy = clients
        for k in clients:
            if k not in self._awake:
                self._awake[k] = self._make(k)
                self._sizes[k] = self._awake[k].nbytes
            self._awake.move_to_end(k)
            self._make_room()
        return [self._awake[k] for k in clients]

    def _make(self, k: int) -> Client:
        """A client as it was when it went to rest, or as it starts."""
        rested = k in self._kept
        modules = self._modules(k, rested)
        client = new_client(
            self._method, k, self._data[k], self._view, device=self._device, precision=self._precision, modules=modules
        )
        if not self._method.params.dp_noise:  # private steps are run in a way of their own
            client.trainer = self._trainer
        if self._fused:
            from fedchoir.engines.local.fused.layers import use_fused_layers  # needs Triton

            use_fused_layers(client.model)
        if rested:
            client.round = self._rounds.pop(k, 0)
            client.load(self._resting.get(k))
        return client

    def _modules(self, k: int, rested: bool) -> ClientModules | None:
        """ClientModules for a client: with any weights if it has rested and brings its own, else with those it starts from.
        None where these are still to be drawn."""
        alike = self._method.task.homogeneous
        if not rested and not alike:
            return None
        idle = self._idle.get(self._method.task.clients[k].model)
        if not idle:
            return deepcopy(self._pattern(k))
        modules = idle.pop()
        if alike:
            modules.start_like(self._pattern(k), auxiliary_only=self._model_comes)
        return modules

    def _pattern(self, k: int) -> ClientModules:
        """ClientModules of the client's architecture; where all are alike, with the weights that they start from."""
        name = self._method.task.clients[k].model
        if name not in self._patterns:
            made = new_modules(self._method, k)
            train = self._data[k].train
            most = max(len(data.train) for data in self._data)
            size = train.images.shape[-1]
            limit_activation_memory(made, self._method, size, most, public=self._view is not None, device=self._device)
            self._patterns[name] = made
        return self._patterns[name]

    def _make_room(self) -> None:
        """Send to rest who was not looked at for longest, until those awake are few and small enough."""
        on_cpu = self._device.type == "cpu"
        limit = self._budget if on_cpu else device_budget(self._device)
        count = AT_HAND if on_cpu and self._budget < float("inf") else len(self)
        idle = [k for k in self._awake if k not in self._busy]
        used = sum(self._sizes[k] for k in self._awake)
        while idle and (used > limit or len(self._awake) > max(count, len(self._busy))):
            k = idle.pop(0)
            used -= self._sizes[k]
            self._rest(k)
        if on_cpu:
            self._resting.budget = max(0.0, self._budget - used)
            self._resting.fit()

    def _rest(self, k: int) -> None:
        client = self._awake.pop(k)
        del self._sizes[k]
        client.trainer.release(client)
        if k in self._kept:
            if state := self._keep(client):
                self._rounds[k] = client.round
                self._resting.put(k, {name: t.detach().to("cpu", copy=True) for name, t in state.items()})
            else:
                self._forget(k)
        modules = ClientModules(client.model, dict(client.modules.items()))
        del client.model, client.modules  # whoever still holds the client must not see another one's weights
        idle = self._idle.setdefault(modules.model.name, [])
        # not many: whoever rests makes room for one; and taking gradients apart image by image leaves its marks
        if len(idle) < SPARE and not self._method.params.dp_noise:
            idle.append(modules)

    @property
    def _model_comes(self) -> bool:
        """Whether clients will begin with the global model, so that their own need not be kept."""
        known = self.global_elsewhere or self._method.global_weights() is not None
        return self._method.begins_with_global and known

    def _keep(self, client: Client) -> State:
        return state_without_model(client) if self._model_comes else client.state()

    def _keep_at_rest(self, k: int) -> State:
        state = self._resting.peek(k)
        return {n: t for n, t in state.items() if not n.startswith("model/")} if self._model_comes else state

    def _forget(self, k: int) -> None:
        self._kept.discard(k)
        self._rounds.pop(k, None)
        self._resting.drop(k)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """What must be kept of every client; None for those of whom the last checkpoint holds it already."""
        for k in sorted(self._kept):
            if self._resting.is_saved(k):
                yield file_name(k), None
            elif state := self._keep(self._awake[k]) if k in self._awake else self._keep_at_rest(k):
                yield file_name(k), state
            elif k not in self._awake:
                self._forget(k)
            else:
                self._kept.discard(k)
        yield KEPT, {"kept": torch.tensor(sorted(self._kept), dtype=torch.int64)}

    def saved(self, read: Read) -> None:
        """A checkpoint now holds all that `states` gave."""
        self._resting.saved(self._kept, read)

    def load(self, read: Read) -> None:
        """Go back to a checkpoint. Each client is read when it is looked at."""
        for client in self._awake.values():
            client.trainer.release(client)
        self._awake.clear()
        self._sizes.clear()
        self._rounds.clear()
        self._busy = ()
        self._kept = set(read(KEPT)["kept"].tolist()) & set(self.here)
        self._resting.saved(self._kept, read)

    def close(self) -> None:
        """Remove what lies on disk."""
        self._resting.close()


def device_budget(device: torch.device) -> float:
    """Bytes that clients may take on a GPU: half of it; their training needs the rest."""
    return torch.cuda.get_device_properties(device).total_memory / 2
