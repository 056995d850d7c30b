"""Letters between a process and its parent, over a socket that only the two have. Bytes and JSON, nothing pickled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait

from fedchoir.engines.messages import Envelope


class Pipe:
    """One end. It raises `OSError` or `EOFError` once the other end is gone."""

    def __init__(self, descriptor: int) -> None:
        self.connection = Connection(descriptor)

    def send(self, letter: Envelope) -> None:
        header = {"letter": letter.header, "blobs": len(letter.blobs)}
        self.connection.send_bytes(json.dumps(header).encode())  # a loss may well be NaN
        for blob in letter.blobs:
            self.connection.send_bytes(blob)

    def receive(self) -> Envelope:
        header = json.loads(self.connection.recv_bytes())
        return Envelope(header["letter"], [self.connection.recv_bytes() for _ in range(header["blobs"])])

    def close(self) -> None:
        self.connection.close()


def readable(pipes: Iterable[Pipe]) -> list[Pipe]:
    """Wait until at least one has something to read, or is gone."""
    by_connection = {pipe.connection: pipe for pipe in pipes}
    return [by_connection[connection] for connection in wait(list(by_connection))]  # type: ignore[index]
