"""A client's side of secure sums: it answers what it is asked about keys, and hides its answers before they leave.

Secrets are kept in a store (a folder at a site, a dictionary in a simulation): the sealing key for the whole run, the
keys offered for the next sum, and those of the last sum until its masks are lifted. Each is used once, and what would
show more than a sum is refused here, whatever the server says.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.crypto import Offer, Participant, SecureAggregationError
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers
from fedchoir.privacy.secure_aggregation.quantization import pack, weight_under

Request = Mapping[str, Any]
MASKED = "masked"  # the name under which hidden numbers travel


class SecureAggregationClient:
    """One client's. ``index`` is its number in the federation, ``run`` what its signatures are good for."""

    def __init__(
        self, index: int, store: MutableMapping[str, str], identity: Identity | None = None, run: str = ""
    ) -> None:
        self._index, self._store = index, store
        self._identity, self._run = identity or UnverifiedPeers(), run

    def exchange_keys(self, request: Request) -> dict[str, Any]:
        """Answer a message about keys."""
        say = request.get("say")
        if say == "seal":
            seal = self._participant().seal
            return {"seal": {"key": seal.hex(), "signature": self._identity.sign(self._about(self._index, seal)).hex()}}
        if say == "offer":
            return {"offer": self._offer(request)}
        if say == "reveal":
            return {"reveal": self._reveal(request)}
        raise SecureAggregationError(f"nothing is known about {say!r}: it should be seal, offer or reveal")

    def hide(self, parts: Sequence[Payload], request: Request) -> tuple[list[Payload], dict[str, Any]]:
        """The answer under masks, and what goes with it: its layout and the keys for the next sum."""
        offered = self._take("offer")
        self._check_offers(request)
        offers, weights = read_offers(request["offers"]), read_weights(request["weights"], request["offers"])
        strict = bool(request["strict"])
        me = self._participant(offered)
        mine = {name: by_client[self._index] for name, by_client in weights.items()}
        packed = pack(parts, lambda name: weight_under(mine, name), len(offers))
        masked = me.mask(packed.words, offers, subject(request), strict=strict)
        kept = {name: request[name] for name in ("sum", "offers", "seals", "strict")}
        self._store["open"] = json.dumps({**offered, **kept})
        told = {"layout": packed.layout, "clipped": packed.clipped, "offer": self._offer(request)}
        return [Payload({MASKED: torch.from_numpy(masked.view("int32"))})], told

    def _offer(self, request: Request) -> dict[str, Any]:
        self._check_seals(request["seals"])
        me, threshold = self._participant(), int(request["threshold"])
        offer = me.offer(read_seals(request["seals"]), threshold)
        number = int(self._store.get("count", "0")) + 1
        self._store["count"] = str(number)
        self._store["offer"] = json.dumps({"mask": me.mask_key.hex(), "seed": me.seed.hex(), "threshold": threshold})
        signature = self._identity.sign(self._about(self._index, offer.mask, offer.proof, number))
        return {**write_offer(offer), "number": number, "signature": signature.hex()}

    def _check_seals(self, seals: Mapping[str, Mapping[str, str]]) -> None:
        """Whether each key is that of the site whose it is said to be, and no site is there twice."""
        if len({seal["name"] for seal in seals.values()}) < len(seals):
            raise SecureAggregationError("refused: two of the keys are said to be one site's")
        for k, key in read_seals(seals).items():
            told = seals[str(k)]
            self._identity.check(told["name"], self._about(k, key), bytes.fromhex(told["signature"]))

    def _check_offers(self, request: Request) -> None:
        """The same for the keys of one sum; each must be newer than the last one seen of that site."""
        seen = json.loads(self._store.get("seen", "{}"))
        for k, offer in read_offers(request["offers"]).items():
            told, name = request["offers"][str(k)], request["seals"][str(k)]["name"]
            number = int(told["number"])
            about = self._about(k, offer.mask, offer.proof, number)
            self._identity.check(name, about, bytes.fromhex(told["signature"]))
            if number <= seen.get(str(k), 0):
                raise SecureAggregationError(f"refused: the keys said to be {name}'s were used before")
            seen[str(k)] = number
        self._store["seen"] = json.dumps(seen)

    def _about(self, index: int, *content: bytes | int) -> bytes:
        """What is signed: keys of one client in one run."""
        parts = [part.hex() if isinstance(part, bytes) else str(part) for part in content]
        return " ".join(["fedchoir secure sum", self._run, str(index), *parts]).encode()

    def _reveal(self, request: Request) -> dict[str, Any]:
        """Shares that lift the masks of the last sum, once: what is opened is forgotten here."""
        held = self._take("open")
        if held["sum"] != request.get("sum"):
            raise SecureAggregationError("refused: this is not the last sum, or its masks were lifted already")
        opened = self._participant(held).reveal(
            read_keys(request["shares"]),
            read_seals(held["seals"]),
            read_offers(held["offers"]),
            sent=[int(k) for k in request["sent"]],
            threshold=int(held["threshold"]),
            strict=bool(held["strict"]),
        )
        return {"seeds": write_keys(opened.seeds), "keys": write_keys(opened.keys)}

    def _participant(self, held: Mapping[str, Any] | None = None) -> Participant:
        if "seal" not in self._store:
            self._store["seal"] = secrets.token_hex(32)
        seal = bytes.fromhex(self._store["seal"])
        if held is None:
            return Participant(self._index, seal)
        return Participant(self._index, seal, bytes.fromhex(held["mask"]), bytes.fromhex(held["seed"]))

    def _take(self, name: str) -> dict[str, Any]:
        """What is kept under a name, and from now on no more: keys are used once, even if what follows fails."""
        try:
            text = self._store.pop(name)
        except KeyError:
            raise SecureAggregationError("refused: the keys of this sum are not here, or were used already") from None
        taken: dict[str, Any] = json.loads(text)
        return taken


class FolderStore(MutableMapping[str, str]):
    """Texts as files that only their owner can read; each is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{name}.part"
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        part.replace(self._folder / name)

    def __delitem__(self, name: str) -> None:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.glob("*") if path.suffix != ".part")

    def __len__(self) -> int:
        return sum(1 for _ in self)


# -- on the wire: JSON with keys in hexadecimal ------------------------------------------------------------------------


def subject(request: Request) -> bytes:
    """What is summed, in one hash: members, keys and weights. Masks cancel only where all were told the same."""
    told = {name: request[name] for name in ("sum", "offers", "weights", "strict")}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def write_keys(keys: Mapping[int, bytes]) -> dict[str, str]:
    return {str(k): key.hex() for k, key in keys.items()}


def read_keys(told: Mapping[str, str]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(key) for k, key in told.items()}


def read_seals(told: Mapping[str, Mapping[str, str]]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(seal["key"]) for k, seal in told.items()}


def write_offer(offer: Offer) -> dict[str, Any]:
    return {"mask": offer.mask.hex(), "proof": offer.proof.hex(), "shares": write_keys(offer.shares)}


def read_offer(told: Mapping[str, Any]) -> Offer:
    return Offer(bytes.fromhex(told["mask"]), bytes.fromhex(told["proof"]), read_keys(told.get("shares", {})))


def read_offers(told: Mapping[str, Mapping[str, Any]]) -> dict[int, Offer]:
    return {int(k): read_offer(offer) for k, offer in told.items()}


def read_weights(told: Mapping[str, Mapping[str, float]], members: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Each member's weight by name. One without weight would not hide the others, so there must be none."""
    weights = {name: {int(k): float(w) for k, w in by_client.items()} for name, by_client in told.items()}
    for by_client in weights.values():
        if set(by_client) != {int(k) for k in members} or not all(0 < w <= 1 for w in by_client.values()):
            raise SecureAggregationError("refused: everyone in a sum needs a weight above 0 and up to 1")
    return weights
