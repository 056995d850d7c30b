"""A site's files of one run: the client's states, the replies that left, and how far the run is.

A reply is stored before it leaves. The same message gets the same reply again, and another message for a position
that was answered is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from fedchoir.deploy.agreement import Position
from fedchoir.engines.headers import MessageError
from fedchoir.engines.messages import Envelope
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.io import atomic_path, atomic_write_json


class RunFolder:
    """States and replies by the number of the message (its serial) that they come from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- how far the run is ----------------------------------------------------------------------------------------

    def check_new(self, position: Position, what: str) -> None:
        """Raise `MessageError` if this position, or a later one, was answered before."""
        path = self.path / "position.json"
        if path.exists() and position <= Position(*json.loads(path.read_text())):
            raise MessageError(
                f"refused: round {position.round + 1} {what} was answered before, with other content, or a later "
                "position was"
            )

    def advance(self, position: Position) -> None:
        """Record the position before its reply leaves."""
        atomic_write_json(self.path / "position.json", position)

    # -- states ----------------------------------------------------------------------------------------------------

    def load_state(self, serial: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A client's state after a message, and the facts stored with it."""
        path = self._state_path(serial)
        if not path.exists():
            raise MessageError(f"there is no state after message {serial} of this run: was the --work folder lost?")
        flat = load_tensors(path)
        return flat, json.loads(bytes(flat.pop("about").tolist()))

    def save_state(self, serial: int, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        packed = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
        self._write(self._state_path(serial), {**state, "about": packed})

    def _state_path(self, serial: int) -> Path:
        return self.path / f"state-{serial:08d}.safetensors"

    # -- replies ---------------------------------------------------------------------------------------------------

    def stored_reply(self, digest: str) -> tuple[Envelope, Position, str] | None:
        """The reply to a message with this content, its position, and the hash of what the client had received, if the
        message was carried out before."""
        for path in self.path.glob(f"reply-*-{digest}.safetensors"):
            facts, text, *blobs = [t.numpy().tobytes() for _, t in sorted(load_tensors(path).items())]
            position, received = json.loads(facts)
            return Envelope(json.loads(text), blobs), Position(*position), received
        return None

    def store_reply(self, serial: int, digest: str, reply: Envelope, position: Position, received: str) -> None:
        content = [json.dumps([position, received]).encode(), reply.text().encode(), *reply.blobs]
        tensors = {f"{n:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for n, raw in enumerate(content)}
        self._write(self.path / f"reply-{serial:08d}-{digest}.safetensors", tensors)

    # -- files -----------------------------------------------------------------------------------------------------

    def clean(self, serial: int, base: int, keep: Iterable[int]) -> None:
        """Delete the states that a server cannot ask for any more, and the replies before the oldest of them.

        A server that resumes sends the messages since its checkpoint again, so their replies are kept.
        """
        states = {serial, base, *keep}
        for path in self.path.glob("state-*"):
            if _serial(path) not in states:
                path.unlink(missing_ok=True)
        for path in self.path.glob("reply-*"):
            if _serial(path) != serial and _serial(path) <= min(states):
                path.unlink(missing_ok=True)

    def _write(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        try:
            with atomic_path(path) as part:
                save_tensors(part, tensors)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or "the disk did not take it"
            raise MessageError(f"could not write its state: {why}; its state before this message is intact") from None


def content_digest(request: Envelope) -> str:
    """A hash of what a message asks for. Its number, its masks and the sizes of other sites do not count."""
    header = request.header
    plan = {name: header["plan"][name] for name in ("method", "settings", "public")}
    digest = hashlib.sha256(json.dumps([header["client"], plan, header["work"]], sort_keys=True).encode())
    for blob in request.blobs:
        digest.update(hashlib.sha256(blob).digest())
    return digest.hexdigest()[:32]


def _serial(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0])
