"""A small client for tests: random 16×16 images of four classes, and a public set of twelve images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedchoir.core.actions import PublicBatch
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

CPU = torch.device("cpu")
BATCH = PublicBatch(round=0, epoch=0, index=0, start=0, size=8)


def images(count: int, seed: int = 0) -> ImageSet:
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 16, 16), generator=draw, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 4)


def public_view(seed: int = 0, augment: Any = "weak") -> PublicView:
    public = PublicSet("p", replace(images(12, 9), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)), (), "")
    return PublicView(public, seed=seed, kind=augment, device=CPU)


def make_client(count: int = 20, model: str = "resnet10@4", index: int = 0, **settings: Any) -> Client:
    """A client with the same initial weights in every call."""
    torch.manual_seed(0)
    chosen = Settings(**{"local_epochs": 2, "local_batch": 8, "image_size": 16, **settings})
    return Client(
        index, "a", build(model, 4, InputSpec.image(16)), images(count), settings=chosen, seed=0, rounds=4,
        public=public_view(),
    )  # fmt: skip


def loss(client: Client, batch: Batch) -> torch.Tensor:
    return cross_entropy(client.logits(batch.inputs), batch.labels)
