"""A hash of everything that a client has received in a run.

Sites of a strict secure sum compare it: a server that gives one site other aggregates than the others, for example
weights of a dead network, could otherwise compute that site's payload from the sum.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from fedchoir.engines.messages import Envelope


def received_digest(before: str, message: Envelope) -> str:
    """The hash after a message, from the hash before it. Weights that are only evaluated do not count."""
    digest = before
    for item in message.header["work"]:
        for number in _blobs(item.get("received")):
            content = hashlib.sha256(message.blobs[number]).hexdigest()
            digest = hashlib.sha256(f"{digest} {item['name']} {content}".encode()).hexdigest()
    return digest


def _blobs(received: Any) -> Iterator[int]:
    """The numbers of the payloads that an action receives, in order."""
    if isinstance(received, dict | list):
        for item in received.values() if isinstance(received, dict) else received:
            yield from _blobs(item)
    elif received is not None:
        yield received
