"""What a client remembers between phases: teachers, prototypes, the global weights of a round."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from torch import Tensor

State = dict[str, Tensor]


class Memory(MutableMapping[str, "State | Tensor"]):
    """Named weights and tensors that the client owns.

    What is put in is copied, and a second value of the same shape goes where the first one was: so a training step that
    was captured with these tensors stays valid in the next round.

    >>> import torch
    >>> memory = Memory()
    >>> memory["a"] = torch.ones(2)
    >>> place = memory["a"].data_ptr()
    >>> memory["a"] = torch.zeros(2)
    >>> memory["a"], memory["a"].data_ptr() == place
    (tensor([0., 0.]), True)
    """

    def __init__(self) -> None:
        self._kept: dict[str, State | Tensor] = {}

    def __getitem__(self, name: str) -> State | Tensor:
        return self._kept[name]

    def __setitem__(self, name: str, value: State | Tensor) -> None:
        old = self._kept.get(name)
        if isinstance(value, Tensor):
            self._kept[name] = _put(old if isinstance(old, Tensor) else None, value)
        else:
            before = old if isinstance(old, dict) else {}
            self._kept[name] = {key: _put(before.get(key), tensor) for key, tensor in value.items()}

    def __delitem__(self, name: str) -> None:
        del self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def tensors(self) -> Iterator[Tensor]:
        for value in self._kept.values():
            yield from (value,) if isinstance(value, Tensor) else value.values()

    def clear(self) -> None:
        self._kept.clear()


def _put(place: Tensor | None, value: Tensor) -> Tensor:
    value = value.detach()
    if place is None or place.shape != value.shape or place.dtype != value.dtype or place.device != value.device:
        return value.clone()
    if place.data_ptr() != value.data_ptr():
        place.copy_(value)
    return place
