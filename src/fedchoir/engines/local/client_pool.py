"""The clients of the local engine: a few are active, the states of the others are cached.

A client that was never used is only an index; it is built on first access. A client that becomes inactive leaves its
state in the cache and its modules to the next one; a client that stores nothing between rounds leaves no state. Results
do not depend on which clients are active.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.core import checkpoint
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.client_state import State, state_without_model
from fedchoir.core.interfaces import ReadState
from fedchoir.core.training import Trainer
from fedchoir.data.scenario import ClientData
from fedchoir.engines.local.client_factory import ClientModules, limit_activation_memory, new_client, new_modules
from fedchoir.engines.local.state_cache import StateCache, state_name
from fedchoir.methods.base import Method

MAX_ACTIVE = 32  # clients on a CPU; activating another one costs a copy of its model
MAX_SPARE = 2  # unused models per architecture
CLIENT_LIST = "clients"  # the name of the list, in a checkpoint, of the clients that it holds


class ClientPool:
    """All clients by index. The client that was accessed last is always active."""

    def __init__(
        self,
        method: Method,
        data: Sequence[ClientData],
        public: PublicView | None,
        trainer: Trainer,
        *,
        device: torch.device,
        precision: str,
        fused: bool = False,
        budget: float,
        folder: Path | None = None,
        indices: Sequence[int] | None = None,
    ) -> None:
        """``indices``: the clients of this process, where others have the rest."""
        self.indices = tuple(range(len(data)) if indices is None else indices)
        self.server_has_global_model = False  # set where the server is another process
        self.notes: dict[str, None] = {}  # of the models, for the result
        self._method, self._data, self._public, self._trainer = method, data, public, trainer
        self._device, self._precision, self._fused = device, precision, fused
        self._budget = budget
        self._cache = StateCache(budget, folder)
        self._active: OrderedDict[int, Client] = OrderedDict()  # least recently used first
        self._sizes: dict[int, int] = {}  # bytes of the active clients
        self._current: int | None = None
        self._changed: set[int] = set()  # clients that are not in their initial state
        self._rounds: dict[int, int] = {}  # the last round of inactive clients
        self._templates: dict[str, ClientModules] = {}  # initial modules by architecture
        self._spare: dict[str, list[ClientModules]] = {}  # modules of inactive clients by architecture
        for first in {method.spec.clients[k].model: k for k in reversed(self.indices)}.values():
            self[first]  # a model that cannot be built fails here, before anything is written

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Client]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> Client:
        k = range(len(self))[k]
        if self._current is not None:
            self._sizes[self._current] = self._active[self._current].nbytes  # training may have stored more
        self._current = k
        if k not in self._active:
            self._active[k] = self._build(k)
            self._sizes[k] = self._active[k].nbytes
        self._active.move_to_end(k)
        self._make_room()
        return self._active[k]

    def changing(self, k: int) -> Client:
        """A client that is about to change."""
        client = self[k]
        self._changed.add(k)
        self._cache.mark_changed(k)
        return client

    # -- activation ------------------------------------------------------------------------------------------------

    def _build(self, k: int) -> Client:
        """A client with its cached state, or in its initial one."""
        cached = k in self._changed
        client = new_client(
            self._method, k, self._data[k], self._public, device=self._device, precision=self._precision,
            modules=self._modules(k, cached),
        )  # fmt: skip
        if not self._method.params.dp_noise:  # private training has its own trainer
            client.trainer = self._trainer
        self.notes |= dict.fromkeys(client.model.notes)
        if self._fused and client.model.memory_format is torch.channels_last:  # fused layers give this layout
            from fedchoir.engines.local.fused.layers import use_fused_layers  # needs Triton

            use_fused_layers(client.model, client.model.watched_modules())
        if cached:
            client.round = self._rounds.pop(k, 0)
            client.load(self._cache.pop(k))
        return client

    def _modules(self, k: int, cached: bool) -> ClientModules | None:
        """Modules with the initial weights, or with any weights if a cached state replaces them. None if the initial
        weights are still to be drawn."""
        spec = self._method.spec
        if not cached and not spec.homogeneous:
            return None
        spare = self._spare.get(spec.clients[k].model)
        if not spare:
            return deepcopy(self._template(k))
        modules = spare.pop()
        if spec.homogeneous:
            modules.copy_from(self._template(k), auxiliary_only=self._model_is_replaced)
        return modules

    def _template(self, k: int) -> ClientModules:
        """Modules of the client's architecture; with the initial weights where all clients share it."""
        name = self._method.spec.clients[k].model
        if name not in self._templates:
            modules = new_modules(self._method, k)
            most = max(len(data.train) for data in self._data)
            limit_activation_memory(modules, self._method, self._data[k], most, device=self._device)
            self._templates[name] = modules
        return self._templates[name]

    def _make_room(self) -> None:
        """Deactivate the least recently used clients until the number and size of the rest are within the limits."""
        on_cpu = self._device.type == "cpu"
        limit = self._budget if on_cpu else device_budget(self._device)
        count = MAX_ACTIVE if on_cpu and self._budget < float("inf") else len(self)
        unused = [k for k in self._active if k != self._current]
        used = sum(self._sizes[k] for k in self._active)
        while unused and (used > limit or len(self._active) > count):
            k = unused.pop(0)
            used -= self._sizes[k]
            self._deactivate(k)
        if on_cpu:
            self._cache.budget = max(0.0, self._budget - used)
            self._cache.evict()

    def _deactivate(self, k: int) -> None:
        client = self._active.pop(k)
        del self._sizes[k]
        client.trainer.release(client)
        if k in self._changed:
            if state := self._state(client):
                self._rounds[k] = client.round
                self._cache.put(k, {name: t.detach().to("cpu", copy=True) for name, t in state.items()})
            else:
                self._forget(k)
        modules = ClientModules(client.model, dict(client.modules.items()))
        del client.model, client.modules  # whoever still holds the client must not see another client's weights
        spare = self._spare.setdefault(modules.model.name, [])
        if len(spare) < MAX_SPARE and not self._method.params.dp_noise:  # per-sample gradients leave hooks behind
            spare.append(modules)

    @property
    def _model_is_replaced(self) -> bool:
        """Whether clients start every round from the global model, so that their own need not be stored."""
        known = self.server_has_global_model or self._method.global_weights() is not None
        return self._method.begins_with_global and known

    def _state(self, client: Client) -> State:
        return state_without_model(client) if self._model_is_replaced else client.state()

    def _cached_state(self, k: int) -> State:
        state = self._cache.peek(k)
        return {n: t for n, t in state.items() if not n.startswith("model/")} if self._model_is_replaced else state

    def _forget(self, k: int) -> None:
        self._changed.discard(k)
        self._rounds.pop(k, None)
        self._cache.drop(k)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """The state of every changed client by name; None where the last complete checkpoint holds it already."""
        for k in sorted(self._changed):
            if self._cache.is_checkpointed(k):
                yield state_name(k), None
            elif state := self._state(self._active[k]) if k in self._active else self._cached_state(k):
                yield state_name(k), state
            elif k not in self._active:
                self._forget(k)
            else:
                self._changed.discard(k)
        self._cache.begin_checkpoint(self._changed)
        yield CLIENT_LIST, {"kept": torch.tensor(sorted(self._changed), dtype=torch.int64)}

    def saved(self, folder: Path) -> None:
        """A complete checkpoint holds everything that `states` gave. Clients may have changed since then."""
        self._cache.end_checkpoint(partial(checkpoint.load, folder))

    def load(self, read: ReadState) -> None:
        """Return to a checkpoint. Each client is read when it becomes active."""
        for client in self._active.values():
            client.trainer.release(client)
        self._active.clear()
        self._sizes.clear()
        self._rounds.clear()
        self._current = None
        self._changed = set(read(CLIENT_LIST)["kept"].tolist()) & set(self.indices)
        self._cache.clear()
        self._cache.begin_checkpoint(self._changed)
        self._cache.end_checkpoint(read)

    def close(self) -> None:
        """Delete the files of the cache."""
        self._cache.clear()


def device_budget(device: torch.device) -> float:
    """Bytes that clients may occupy on a GPU: half of its memory; training needs the other half."""
    return torch.cuda.get_device_properties(device).total_memory / 2
