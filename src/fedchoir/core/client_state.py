"""A client's state: what it stores between phases, and all of it as flat named tensors for checkpoints and sites.

``model/…`` weights and buffers, ``modules/…`` of the auxiliary modules, ``memory/NAME`` or ``memory/NAME/…``, and
``optimizer/NAME/NUMBER/SLOT`` of the optimisers that outlive a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedchoir.core.client import Client


State = dict[str, Tensor]


class Memory(MutableMapping[str, "State | Tensor"]):
    """Named state dicts and tensors that a client stores between phases: teachers, prototypes, global weights.

    Values are copied. A second value of the same shape is written into the memory of the first, so that a captured
    training step that uses it stays valid in the next round.

    >>> import torch
    >>> memory = Memory()
    >>> memory["a"] = torch.ones(2)
    >>> place = memory["a"].data_ptr()
    >>> memory["a"] = torch.zeros(2)
    >>> memory["a"], memory["a"].data_ptr() == place
    (tensor([0., 0.]), True)
    """

    def __init__(self) -> None:
        self._values: dict[str, State | Tensor] = {}

    def __getitem__(self, name: str) -> State | Tensor:
        return self._values[name]

    def __setitem__(self, name: str, value: State | Tensor) -> None:
        old = self._values.get(name)
        if isinstance(value, Tensor):
            self._values[name] = _copy_into(old if isinstance(old, Tensor) else None, value)
        else:
            before = old if isinstance(old, dict) else {}
            self._values[name] = {key: _copy_into(before.get(key), tensor) for key, tensor in value.items()}

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def tensors(self) -> Iterator[Tensor]:
        for value in self._values.values():
            yield from (value,) if isinstance(value, Tensor) else value.values()

    def clear(self) -> None:
        self._values.clear()


def _copy_into(place: Tensor | None, value: Tensor) -> Tensor:
    value = value.detach()
    if place is None or place.shape != value.shape or place.dtype != value.dtype or place.device != value.device:
        return value.clone()
    if place.data_ptr() != value.data_ptr():
        place.copy_(value)
    return place


def flatten(client: Client) -> State:
    """Everything that must survive between two phases."""
    return {f"model/{n}": t for n, t in client.model.state_dict().items()} | state_without_model(client)


def state_without_model(client: Client) -> State:
    """The same without the model, for clients that load global weights first."""
    flat = {f"modules/{n}": t for n, t in client.modules.state_dict().items()}
    for name, value in client.memory.items():
        if isinstance(value, Tensor):
            flat[f"memory/{name}"] = value
        else:
            flat |= {f"memory/{name}/{n}": t for n, t in value.items()}
    for name, optimizer in client.optimizers.items():
        for number, slots in optimizer.state_dict()["state"].items():
            flat |= {f"optimizer/{name}/{number}/{slot}": t for slot, t in slots.items()}
    return flat


def restore(client: Client, flat: Mapping[str, Tensor]) -> None:
    """Restore what `flatten` gave. A model that was left out stays unchanged."""
    groups: dict[str, State] = {"model": {}, "modules": {}, "memory": {}, "optimizer": {}}
    for name, t in flat.items():
        kind, _, rest = name.partition("/")
        if kind in groups:
            groups[kind][rest] = t.to(client.device)
    if groups["model"]:
        client.model.load_state_dict(groups["model"])
    client.modules.load_state_dict(groups["modules"])
    _restore_memory(client, groups["memory"])
    _restore_optimizer(client, groups["optimizer"])


def _restore_memory(client: Client, flat: Mapping[str, Tensor]) -> None:
    client.memory.clear()
    states: dict[str, State] = {}
    for name, t in flat.items():
        owner, _, rest = name.partition("/")
        if rest:
            # Same memory layout as the model's weights: another one would change the order of summation.
            placed = t.contiguous(memory_format=client.model.memory_format) if t.dim() == 4 else t
            states.setdefault(owner, {})[rest] = placed
        else:
            client.memory[owner] = t
    for owner, state in states.items():
        client.memory[owner] = state


def _restore_optimizer(client: Client, flat: Mapping[str, Tensor]) -> None:
    slots: dict[int, State] = {}
    parameters = client.parameters()
    for name, t in flat.items():
        _, number, slot = name.split("/")
        like = parameters[int(number)]
        # The fused optimiser needs parameters and moments in the same memory layout.
        slots.setdefault(int(number), {})[slot] = (
            torch.empty_like(like).copy_(t).detach() if t.shape == like.shape else t
        )
    client.optimizers = {"public": client.new_public_optimizer()} if slots else {}
    for optimizer in client.optimizers.values():
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": slots, "param_groups": groups})
