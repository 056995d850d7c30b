"""One method and one client with random images, without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.methods.base import Method
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

MODEL = "resnet10@4"
State = dict[str, torch.Tensor]


def a_spec(sizes: tuple[int, ...] = (12, 30)) -> FederationSpec:
    clients = tuple(ClientInfo(f"c{k}", MODEL, n, 10, "global") for k, n in enumerate(sizes))
    return FederationSpec(tuple("abcd"), clients, rounds=4, seed=3, inputs=InputSpec.image(16))


def a_method(cls: type[Method], **changes: Any) -> Any:
    values = {"image_size": 16, "local_epochs": 2, "local_batch": 8, "optimizer": "sgd", "local_lr": 0.05}
    return cls(cls.Params(**{**values, "lr_schedule": "constant", **changes}), a_spec())


def a_client(method: Method, index: int = 0) -> Client:
    size = method.spec.clients[index].train
    g = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, (size, 3, 16, 16), generator=g, dtype=torch.uint8)
    torch.manual_seed(0)
    model = build(MODEL, 4, InputSpec.image(16))
    private = ImageSet(pixels, torch.arange(size) % 4)
    return Client(index, f"c{index}", model, private, settings=method.params, seed=3, rounds=4)


def parameters(client: Client) -> State:
    return {n: p.detach().clone() for n, p in client.model.named_parameters()}


def features(client: Client) -> np.ndarray:
    """Features of all private images in eval mode, by hand."""
    pixels = client.private.inputs.float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (client.private.mean, client.private.std))
    client.model.eval()
    with torch.no_grad():
        return client.model.features((pixels - mean) / std).numpy()
