"""Compressed payloads: the bytes that travel, and the numbers that the receiver makes of them.

The sender decodes its own bytes, so that every engine uses the receiver's numbers. What arrives has a list of its
entries. It is compared with the declaration, and their size with the limit, before anything is unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedchoir.compression import entropy, symmetric
from fedchoir.compression.chain import Chain, parse
from fedchoir.compression.coding import Coding
from fedchoir.payload import SCALAR_BYTES, Payload, PayloadError, Wire, metadata
from fedchoir.utils.errors import UsageError

CONTENT, LAYOUT = "content", "compressed"
DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip
Residuals = MutableMapping[str, Tensor]
"""What compression has left out of entries that repeat, by name."""
Size = Annotated[int, Field(ge=0, le=2**40)]


@dataclass(frozen=True)
class Traits:
    """What the sender knows of an entry.

    Attributes:
        symmetric: both halves of the matrix are equal.
        sparse: numbers may be left out; of weights none may, because a weight that is left out is not a small one.
        repeats: the same entry comes again in later rounds, so that the error of this one can be made up for.
        adds_up: its values add up over the rounds, as changes of weights do.
    """

    symmetric: bool = False
    sparse: bool = False
    repeats: bool = False
    adds_up: bool = False


class Layout(BaseModel):
    """What the bytes of a compressed payload are: the only field of their header."""

    model_config = ConfigDict(strict=True, extra="forbid")

    chain: str
    packed: bool  # by zstd
    scalars: dict[str, float]
    entries: dict[str, tuple[str, list[Size], bool, bool]]  # dtype, shape, and the two properties of `Coding`

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Layout | None:
        """The layout in a header; None where the payload is not compressed."""
        if LAYOUT not in fields:
            return None
        try:
            return cls.model_validate_json(fields[LAYOUT])
        except (ValidationError, RecursionError):
            raise PayloadError("the list of entries is malformed") from None

    def codings(self, limit: int) -> dict[str, Coding]:
        """How every entry travels; `PayloadError` if they would have more than ``limit`` bytes."""
        chain = _chain(self.chain)
        codings: dict[str, Coding] = {}
        for name, (dtype, shape, half, sparse) in self.entries.items():
            if dtype not in DTYPES or len(shape) > 8 or (half and not symmetric.possible(tuple(shape))):
                raise PayloadError("the list of entries is malformed")
            codings[name] = Coding(chain, tuple(shape), DTYPES[dtype], half, sparse)
        total = sum(coding.nbytes for coding in codings.values())
        if total > limit:
            raise PayloadError(f"unpacked it would have {total} bytes, and {limit} are allowed")
        if self.packed and not chain.zstd:
            raise PayloadError("packed with zstd, which its chain does not have")
        return codings


def compressed(
    payload: Payload, chain: Chain, traits: Callable[[str, Tensor], Traits], residuals: Residuals, key: str = ""
) -> Payload:
    """The payload as its receiver sees it, with the bytes that travel. Updates the residuals under ``key`` + name."""
    content: list[bytes] = []
    entries: dict[str, tuple[str, list[int], bool, bool]] = {}
    decoded: dict[str, Tensor] = {}
    for name in sorted(payload):  # a checkpoint may change the order of a state dict
        tensor = payload[name]
        about = traits(name, tensor)
        coding = _coding(chain, tensor, about)
        feedback = _has_feedback(coding, about)
        raw, decoded[name] = _with_feedback(tensor, coding, residuals, f"{key}{name}" if feedback else "")
        content.append(raw)
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries[name] = (dtype, list(tensor.shape), coding.half, coding.sparse)
    plain = b"".join(content)
    frame = entropy.pack(plain) if chain.zstd else plain
    packed = len(frame) < len(plain)
    layout = {"chain": str(chain), "packed": packed, "scalars": payload.scalars, "entries": entries}
    sent = frame if packed else plain
    # One field: safetensors writes several in any order, and equal payloads must be equal bytes.
    raw = safetensors.torch.save({CONTENT: _uint8(sent)}, metadata={LAYOUT: json.dumps(layout)})
    return _on_wire({name: decoded[name] for name in payload}, payload.scalars, raw, len(sent))


def read_payload(
    raw: bytes,
    limit: int,
    *,
    chain: str | None = None,
    check: Callable[[Payload], None] = lambda payload: None,
) -> Payload:
    """The payload of bytes from another process.

    Args:
        limit: the most bytes that its tensors may have.
        chain: the chain that must have been used; empty: none; None: any.
        check: raises `PayloadError` unless the entries are the declared ones. It sees names, shapes and dtypes.
    """
    layout = Layout.read(metadata(raw))
    used = layout.chain if layout else ""
    if chain is not None and used != chain:
        raise PayloadError(f"compressed with {used or 'nothing'!r:.60}, and the agreed chain is {chain or 'none'!r}")
    outer = Payload.from_bytes(raw)
    if layout is None:
        return outer
    if set(outer) != {CONTENT} or outer[CONTENT].dtype != torch.uint8 or outer[CONTENT].dim() != 1:
        raise PayloadError("a compressed payload has one row of bytes and nothing else")
    codings = layout.codings(limit)
    empty = {name: torch.empty(coding.shape, dtype=coding.dtype, device="meta") for name, coding in codings.items()}
    check(Payload(empty, scalars=layout.scalars))
    sent = outer[CONTENT].numpy().tobytes()
    size = sum(coding.size for coding in codings.values())
    content = entropy.unpack(sent, size) if layout.packed else sent
    if len(content) != size:
        raise PayloadError(f"{len(content)} bytes of content, and its entries need {size}")
    return _on_wire(_decoded(content, codings), layout.scalars, raw, len(sent))


def sizes(payload: Payload, chain: Chain, traits: Callable[[str, Tensor], Traits]) -> dict[str, int]:
    """Bytes of each entry that travel, before zstd."""
    return {name: _coding(chain, tensor, traits(name, tensor)).size for name, tensor in payload.items()}


def _coding(chain: Chain, tensor: Tensor, about: Traits) -> Coding:
    shape = tuple(tensor.shape)
    half = about.symmetric and symmetric.possible(shape)
    return Coding(chain, shape, tensor.dtype, half, about.sparse)


def _has_feedback(coding: Coding, about: Traits) -> bool:
    """Errors of int8 are fed back wherever an entry repeats, and what top-k leaves out only where values add up: other
    values would be sent several times as large as they are."""
    remembers = about.adds_up if coding.selects else coding.coded and coding.chain.rounding == "int8"
    return about.repeats and remembers


def _with_feedback(tensor: Tensor, coding: Coding, residuals: Residuals, key: str) -> tuple[bytes, Tensor]:
    """The bytes of an entry and the receiver's numbers, on the entry's device."""
    value = tensor.detach().cpu().contiguous()
    before = residuals.get(key) if key else None
    if before is not None and before.numel() == value.numel():
        value = value + before.cpu().view(value.shape)
    raw = coding.encode(value)
    if not coding.lossy and not coding.half:
        return raw, tensor.detach()
    decoded = coding.decode(raw)
    if key:
        residuals[key] = (value - decoded).nan_to_num(0.0, 0.0, 0.0).view(-1)
    return raw, decoded.to(tensor.device)


def _decoded(content: bytes, codings: Mapping[str, Coding]) -> dict[str, Tensor]:
    tensors, place = {}, 0
    for name, coding in codings.items():
        tensors[name] = coding.decode(content[place : place + coding.size])
        place += coding.size
    return tensors


def _chain(text: str) -> Chain:
    """A chain that another process names."""
    try:
        found = parse(text).up
    except UsageError:
        found = None
    if found is None or str(found) != text:
        raise PayloadError("the name of its compression is malformed")
    return found


def _on_wire(tensors: Mapping[str, Tensor], scalars: Mapping[str, float], raw: bytes, content: int) -> Payload:
    payload = Payload(tensors, scalars=scalars)
    payload.wire = Wire(raw, content + SCALAR_BYTES * len(scalars))
    return payload


def _uint8(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
