"""What crosses the wire: named tensors and scalars, declared in advance, counted, checked, never pickled.

`sends` declares what a client function may send. `check` compares a payload with its declaration, on both sides.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedchoir.utils.errors import UsageError
from fedchoir.utils.text import printable

MODEL = "model"  # declares every tensor of the state dict of the client's model (`Method.model_shapes`)
MODULE = "module"  # declares every tensor of the auxiliary module (`Client.modules`) of that name
KEPT = "kept"  # declares that one tensor of the model is not sent: {"weights": MODEL, "weights/bn.bias": KEPT}
SCALAR_BYTES = 8
LARGEST = 1e9  # magnitude of a number in a payload; its fourth power is still finite in float32
_DIM = re.compile(r"([A-Za-z]+|\d+)(?:([-+*])(\d+))?")
F = TypeVar("F", bound=Callable[..., Any])
Declaration = Mapping[str, str]
"""Name → shape and dtype, for example ``{"logits": "B C"}``."""


class PayloadError(ValueError):
    """A payload is not what its method declared, or its numbers are not finite or far too large."""


class Wire(NamedTuple):
    """A payload as it travels where it is compressed."""

    raw: bytes
    nbytes: int  # without headers


class Payload(Mapping[str, Tensor]):
    """Named tensors plus named scalars. With ``wire`` the tensors are those that the receiver makes of these bytes.

    >>> p = Payload(logits=torch.zeros(4, 10), scalars={"loss": 0.5})
    >>> p["logits"].shape, p.scalars["loss"], p.nbytes
    (torch.Size([4, 10]), 0.5, 168)
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        scalars: Mapping[str, float] | None = None,
        **named: Tensor,
    ) -> None:
        self._tensors = {name: t.detach() for name, t in {**(tensors or {}), **named}.items()}
        self.scalars: dict[str, float] = {name: float(v) for name, v in (scalars or {}).items()}
        self.wire: Wire | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        fields = [f"{n}={tuple(t.shape)}" for n, t in self.items()] + [f"{n}={v:g}" for n, v in self.scalars.items()]
        return f"Payload({', '.join(fields)})"

    @property
    def nbytes(self) -> int:
        """Bytes of content on the wire, without headers, as in the papers' cost model."""
        if self.wire is not None:
            return self.wire.nbytes
        return sum(t.numel() * t.element_size() for t in self.values()) + SCALAR_BYTES * len(self.scalars)

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose name starts with ``prefix/``, without it: ``under("weights")`` is a state dict."""
        start = prefix + "/"
        return {name.removeprefix(start): t for name, t in self.items() if name.startswith(start)}

    def only(self, name: str) -> Payload:
        """The tensors and scalars called ``name`` or ``name/…``."""
        start = name + "/"
        tensors = {n: t for n, t in self.items() if n == name or n.startswith(start)}
        return Payload(tensors, scalars={n: v for n, v in self.scalars.items() if n == name})

    def to(self, device: torch.device) -> Payload:
        return Payload({name: t.to(device) for name, t in self.items()}, scalars=self.scalars)

    def to_bytes(self) -> bytes:
        """Safetensors: a header and raw numbers, nothing executable."""
        if self.wire is not None:
            return self.wire.raw
        tensors = {name: t.contiguous().cpu() for name, t in self.items()}
        return safetensors.torch.save(tensors, metadata={"scalars": json.dumps(self.scalars)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> Payload:
        try:
            tensors = safetensors.torch.load(raw)
            return cls(tensors, scalars=json.loads(metadata(raw).get("scalars", "{}")))
        except (SafetensorError, *_MALFORMED) as error:
            raise PayloadError(f"not a payload: {printable(str(error), 200)}") from None


_MALFORMED = (ValueError, AttributeError, TypeError, KeyError, ArithmeticError, RecursionError)


def metadata(raw: bytes) -> dict[str, str]:
    """The fields in the header of a payload's bytes beside its tensors."""
    try:
        found = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
        return {str(name): str(value) for name, value in found.items()}
    except _MALFORMED as error:
        raise PayloadError(f"not a payload: {printable(str(error), 200)}") from None


def state_payload(prefix: str, state: Mapping[str, Tensor]) -> Payload:
    """A state dict as a payload, its names under ``prefix/``."""
    return Payload({f"{prefix}/{name}": t.clone() for name, t in state.items()})


def save_tensors(path: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors. Tensors that share memory are written once each."""
    safetensors.torch.save_file({n: t.detach().contiguous().cpu().clone() for n, t in tensors.items()}, path)


def load_tensors(path: Any) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a readable safetensors file: {error}") from None


def sends(declaration: Callable[[Any], Declaration] | None = None, /, **declared: str) -> Callable[[F], F]:
    """Declare what a client function may send: ``@sends(logits="B C", similarity="B B-1", loss="scalar")``.

    Dimensions are numbers, or names that the exchange knows (``C`` classes, ``B`` samples of this public batch, ``K``
    clients, and a method's own ``dims``), with one ``+``, ``-`` or ``*`` number after them. A name that the exchange
    does not know is free, but must be the same everywhere in one payload. ``model`` stands for the state dict of the
    shared architecture, ``module`` for that of the auxiliary module of this name, ``kept`` for a tensor of them that is
    not sent. After a colon comes the dtype: ``counts="C:int64"``; the default is float32.

    Where the payload depends on the method's options, pass a function of the method: ``@sends(payload_fields)`` with
    ``payload_fields(self) -> {"logits": "B C"}``.
    """

    def mark(function: F) -> F:
        function.__sends__ = declaration or dict(declared)  # type: ignore[attr-defined]
        return function

    return mark


def declared_by(function: Callable[..., Any]) -> dict[str, str]:
    """What ``function`` may send."""
    try:
        declaration = function.__sends__  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"{function.__qualname__} sends a payload but declares none: decorate it with @sends") from None
    return dict(declaration(function.__self__) if callable(declaration) else declaration)  # type: ignore[attr-defined]


def check(
    payload: Payload,
    declared: Mapping[str, str],
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None = None,
    *,
    modules: Mapping[str, Tensor] | None = None,
    finite: bool = True,
) -> None:
    """Raise `PayloadError` unless ``payload`` is exactly what was declared: names, shapes, dtypes,
    and numbers that are finite and at most `LARGEST`.

    >>> check(Payload(logits=torch.zeros(4, 3)), {"logits": "B C"}, {"B": 4, "C": 10})
    Traceback (most recent call last):
        ...
    fedchoir.payload.PayloadError: logits has shape (4, 3), declared as B C = (4, 10)
    """
    expected = _tensor_specs(declared, model, modules)
    _same_names("tensor", set(payload), set(expected))
    _same_names("scalar", set(payload.scalars), {n for n, spec in declared.items() if spec == "scalar"})
    known = dict(dims)
    for name, spec in expected.items():
        _check_tensor(name, payload[name], spec, known)
    if finite:
        check_values(payload)


def zero_payload(
    declared: Declaration,
    dims: Mapping[str, int],
    model: Mapping[str, Tensor] | None = None,
    modules: Mapping[str, Tensor] | None = None,
) -> Payload:
    """A payload of zeros that satisfies its declaration; dimensions that nobody knows have size 1.

    >>> zero_payload({"logits": "B C", "loss": "scalar"}, {"B": 4, "C": 10})
    Payload(logits=(4, 10), loss=0)
    """
    known, tensors = dict(dims), {}
    for name, spec in _tensor_specs(declared, model, modules).items():
        shape, _, dtype = spec.partition(":")
        sizes = [_size(symbol, 1, known) for symbol in shape.split()]
        tensors[name] = torch.zeros(sizes, dtype=getattr(torch, dtype or "float32"))
    return Payload(tensors, scalars={name: 0.0 for name, spec in declared.items() if spec == "scalar"})


def _tensor_specs(
    declared: Declaration, model: Mapping[str, Tensor] | None, modules: Mapping[str, Tensor] | None
) -> dict[str, str]:
    """The declaration of every single tensor, with those of the model and of auxiliary modules spelled out."""
    specs = {name: spec for name, spec in declared.items() if spec not in (MODEL, MODULE, KEPT, "scalar")}
    for prefix, spec in declared.items():
        if spec == MODEL and model is None:
            raise PayloadError(f"{prefix} stands for the shared architecture, but the clients have different ones")
        if spec == MODEL:
            specs |= _state_specs(prefix, model or {})
        if spec == MODULE:
            start = prefix + "."
            own = {name.removeprefix(start): t for name, t in (modules or {}).items() if name.startswith(start)}
            specs |= _state_specs(prefix, own)
    return {name: spec for name, spec in specs.items() if declared.get(name) != KEPT}


def _state_specs(prefix: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """The declaration of every tensor of a state dict, under ``prefix/``."""
    return {
        f"{prefix}/{name}": " ".join(map(str, t.shape)) + f":{str(t.dtype).removeprefix('torch.')}"
        for name, t in state.items()
    }


def _same_names(kind: str, sent: set[str], declared: set[str]) -> None:
    if extra := sorted(sent - declared):
        raise PayloadError(f"{kind} {extra[0]} was not declared")
    if missing := sorted(declared - sent):
        raise PayloadError(f"{kind} {missing[0]} is missing")


def _check_tensor(name: str, tensor: Tensor, spec: str, known: dict[str, int]) -> None:
    shape, _, dtype = spec.partition(":")
    wanted = getattr(torch, dtype or "float32")
    if tensor.dtype != wanted:
        raise PayloadError(f"{name} is {tensor.dtype}, declared as {wanted}")
    symbols = shape.split()
    if tensor.dim() != len(symbols):
        raise PayloadError(f"{name} has {tensor.dim()} dimensions, declared as {shape or 'a single number'}")
    sizes = tuple(_size(symbol, actual, known) for symbol, actual in zip(symbols, tensor.shape, strict=True))
    if sizes != tuple(tensor.shape):
        raise PayloadError(f"{name} has shape {tuple(tensor.shape)}, declared as {shape} = {sizes}")


def _size(symbol: str, actual: int, known: dict[str, int]) -> int:
    match = _DIM.fullmatch(symbol)
    if match is None:
        raise TypeError(f"cannot read the dimension {symbol!r} of a declaration")
    base, operator, number = match.groups()
    if base.isdigit():
        value = int(base)
    elif base in known:
        value = known[base]
    elif operator is None:
        value = known[base] = actual
    else:
        raise TypeError(f"dimension {base} of {symbol!r} is not known yet: declare it alone first")
    if operator is None:
        return value
    return {"+": value + int(number), "-": value - int(number), "*": value * int(number)}[operator]


def check_values(payload: Payload) -> None:
    """Refuse numbers that are not finite, or so large that one client could ruin every model."""
    for name, t in payload.items():
        if t.numel() and t.dtype != torch.bool:
            _check_value(name, *(float(bound) for bound in torch.aminmax(t)))  # both are NaN if any number is
    for name, value in payload.scalars.items():
        _check_value(name, value)


def _check_value(name: str, *values: float) -> None:
    if not all(map(math.isfinite, values)):
        raise PayloadError(f"{name} is not finite")
    if max(map(abs, values)) > LARGEST:
        raise PayloadError(f"{name} has a magnitude of {max(map(abs, values)):.3g}, and {LARGEST:g} is allowed")
