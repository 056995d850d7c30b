"""A federation of many clients with three images each, on the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.methods.base import Method
from fedchoir.utils.input_spec import InputSpec


class ManyClients:
    """Five clients take part in a round unless ``fraction`` says otherwise."""

    def __init__(
        self, method: type[Method], count: int, folder: Path | None = None, *, budget: float = 2e9, **options: Any
    ) -> None:
        images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        self.test = ImageSet(images, torch.arange(40) % 4)
        samples = [torch.tensor([k % 40, (k + 1) % 40, (k + 2) % 40]) for k in range(count)]
        data = tuple(ClientData(f"c{k}", self.test.subset(samples[k]), "global") for k in range(count))
        infos = tuple(ClientInfo(d.name, "logistic", 3, 40, "global") for d in data)
        values = {"local_epochs": 1, "local_batch": 2, "image_size": 16, "fraction": min(1.0, 5 / count), **options}
        spec = FederationSpec(tuple("abcd"), infos, 50, 0, inputs=InputSpec.image(16))
        self.method = method(method.Params(**values), spec)
        scenario = Scenario("many", tuple("abcd"), data, {"global": self.test})
        self.engine = LocalEngine(self.method, scenario, None, device=torch.device("cpu"), budget=budget)
        self.clients = self.engine.clients
        self.server = Server(self.method, self.engine, ("global",), folder=folder)
        self._rounds = self.server.rounds()

    def run_rounds(self, count: int) -> list[dict[str, Any]]:
        events = []
        for _ in range(count):
            events += next(self._rounds)
            if self.server.folder:
                self.server.save()
        return events
