"""Names that Flower's app bundle must have. Neither runs: `fedchoir serve` and `fedchoir node` take their parts."""

from __future__ import annotations

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()
