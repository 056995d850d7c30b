"""A client's whole state as flat named tensors, and back: what checkpoints hold, and sites between messages.

``model/…`` weights and buffers, ``parts/…`` of the modules beside it, ``memory/NAME`` or ``memory/NAME/…``, and
``optimizer/NAME/NUMBER/SLOT`` of the optimisers that live on in the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedchoir.federation.remember import State

if TYPE_CHECKING:
    from fedchoir.federation.client import Client


def flatten(client: Client) -> State:
    """Everything that must survive between two phases."""
    return {f"model/{n}": t for n, t in client.model.state_dict().items()} | beside_the_model(client)


def beside_the_model(client: Client) -> State:
    """The same without the model, which is enough where it will be replaced before it is used."""
    flat = {f"parts/{n}": t for n, t in client.parts.state_dict().items()}
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
    """Give back what `flatten` took. A model that was left out stays as it is."""
    groups: dict[str, State] = {"model": {}, "parts": {}, "memory": {}, "optimizer": {}}
    for name, t in flat.items():
        kind, _, rest = name.partition("/")
        if kind in groups:
            groups[kind][rest] = t.to(client.device)
    if groups["model"]:
        client.model.load_state_dict(groups["model"])
    client.parts.load_state_dict(groups["parts"])
    _restore_memory(client, groups["memory"])
    _restore_optimizer(client, groups["optimizer"])


def _restore_memory(client: Client, flat: Mapping[str, Tensor]) -> None:
    client.memory.clear()
    states: dict[str, State] = {}
    for name, t in flat.items():
        owner, _, rest = name.partition("/")
        if rest:
            # Weights lie in memory as the model's do: another layout would sum in another order.
            laid_out = t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
            states.setdefault(owner, {})[rest] = laid_out
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
        # A fused step walks over parameter and moments in memory: they must lie there in the same order.
        slots.setdefault(int(number), {})[slot] = (
            torch.empty_like(like).copy_(t).detach() if t.shape == like.shape else t
        )
    client.optimizers = {"public": client.public_optimizer()} if slots else {}
    for optimizer in client.optimizers.values():
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": slots, "param_groups": groups})
