"""Which layers a module calls in a forward pass, and what goes in and out of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

Side = Literal["input", "output"]


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer, with the first tensor that it received and the first one that it returned.

    ``one_tensor``: it received nothing else, and returned nothing else.
    """

    name: str
    layer: nn.Module
    started: int
    ended: int
    input: Tensor | None
    output: Tensor | None
    one_tensor: bool


def record_calls(net: nn.Module, run: Callable[[], Any]) -> list[LayerCall]:
    """The calls of ``net``'s layers while ``run`` runs, in the order in which they end."""
    clock = iter(range(2**62))
    open_calls: list[int] = []
    calls: list[LayerCall] = []

    def begin(*_: Any) -> None:
        open_calls.append(next(clock))

    def end(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        one_tensor = len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and isinstance(output, Tensor)
        started, ended = open_calls.pop(), next(clock)
        tensors = first_tensor((args, kwargs)), first_tensor(output)
        calls.append(LayerCall(name, layer, started, ended, *tensors, one_tensor))

    handles = []
    for name, layer in net.named_modules():
        if name:
            handles.append(layer.register_forward_pre_hook(begin))
            handles.append(
                layer.register_forward_hook(
                    lambda layer, args, kwargs, output, name=name: end(name, layer, args, kwargs, output),
                    with_kwargs=True,
                )
            )
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def calls_after(calls: list[LayerCall], time: int) -> list[LayerCall]:
    """The outermost calls that begin after a point in time."""
    found: list[LayerCall] = []
    for call in sorted((c for c in calls if c.started > time), key=lambda c: c.started):
        if not found or call.started > found[-1].ended:
            found.append(call)
    return found


@contextmanager
def captured(net: nn.Module, wanted: Mapping[str, tuple[str, Side]]) -> Iterator[dict[str, Tensor]]:
    """The input or output of layers in the pass inside the block, by the names that ``wanted`` gives them.

    Hooks exist for this pass only: a copy of the model has none that refer to the original.
    """
    found: dict[str, Tensor] = {}

    def store(key: str, value: Any) -> None:
        tensor = first_tensor(value)
        if tensor is not None:
            found[key] = tensor

    handles = []
    for key, (layer, side) in wanted.items():
        module = net.get_submodule(layer)
        if side == "output":
            handles.append(module.register_forward_hook(lambda _, __, output, key=key: store(key, output)))
        else:
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, args, kwargs, key=key: store(key, (args, kwargs)), with_kwargs=True
                )
            )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in nested tuples, lists, dictionaries and output objects."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((tensor for item in items if (tensor := first_tensor(item)) is not None), None)
