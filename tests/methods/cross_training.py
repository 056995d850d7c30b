"""One method and clients with random images for the tests of FedExg, PGCT and FedCT."""

from __future__ import annotations

from typing import Any

import torch

from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.methods.fedct import FedCT
from fedchoir.methods.fedexg import FedExg
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

CLASSES = 5
MODEL = "resnet10@4"


def a_spec(clients: int = 3) -> FederationSpec:
    clients = tuple(ClientInfo(f"c{k}", MODEL, 10 + k, 10, "global") for k in range(clients))
    return FederationSpec(tuple("abcde"), clients, rounds=2, seed=3, inputs=InputSpec.image(16))


def a_method(cls: type[FedExg] = FedCT, clients: int = 3, **settings: Any) -> Any:
    return cls(cls.Params(image_size=16, local_epochs=1, local_batch=8, **settings), a_spec(clients))


def a_client(method: FedExg, index: int = 0, labels: tuple[int, ...] = (0, 1, 2, 3) * 3) -> Client:
    torch.manual_seed(index)
    pixels = torch.randint(0, 256, (len(labels), 3, 16, 16), dtype=torch.uint8)
    private = ImageSet(pixels, torch.tensor(labels))
    model = build(MODEL, CLASSES, InputSpec.image(16))
    return Client(index, f"c{index}", model, private, settings=method.params, seed=3, rounds=2)
