"""One self-supervised client, small enough for tests."""

from __future__ import annotations

from typing import Any

import torch

from fedchoir import methods
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import ClientData
from fedchoir.engines.local.client_factory import new_client
from fedchoir.methods.self_supervised import SelfSupervised
from fedchoir.utils.input_spec import InputSpec


def colored_images(count: int, seed: int = 0) -> ImageSet:
    """Images of one colour each, with a little noise: two views of one have something in common."""
    draw = torch.Generator().manual_seed(seed)
    colours = torch.randint(20, 236, (count, 3, 1, 1), generator=draw)
    noise = torch.randint(-20, 21, (count, 3, 16, 16), generator=draw)
    return ImageSet((colours + noise).to(torch.uint8), torch.arange(count) % 4)


def one_client(
    name: str = "byol", count: int = 40, model: str = "resnet10@4", **settings: Any
) -> tuple[SelfSupervised, Client]:
    """A method and its first client."""
    cls = methods.get(name)
    tiny = {"private_augment": "strong", "optimizer": "sgd", "local_lr": 0.03, "local_batch": 16, "dim": 8}
    params = cls.Params(**{**tiny, "local_epochs": 1, "hidden": 16, "knn": 3, "image_size": 16, **settings})
    clients = tuple(ClientInfo(n, model, count, 8, n) for n in "abc")
    method = cls(params, FederationSpec(("p", "q", "r", "s"), clients, rounds=4, seed=0, inputs=InputSpec.image(16)))
    data = ClientData("a", colored_images(count), "a")
    client = new_client(method, 0, data, None, device=torch.device("cpu"), precision="fp32")
    client.phase = "practise"  # frozen stream name
    return method, client  # type: ignore[return-value]
