"""Modules as users write them, none of which knows this package."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainNet(nn.Module):
    """PyTorch's first example: ``view``, dropout as a layer, log_softmax at the end, no BatchNorm."""

    def __init__(self, num_classes: int = 10, input_shape: tuple[int, ...] = (3, 32, 32)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 4, 5)
        self.conv2 = nn.Conv2d(4, 8, 5)
        self.dropout = nn.Dropout(0.5)
        self.fc1 = nn.Linear(8 * ((input_shape[1] - 4) // 2 - 4) ** 2 // 4, 20)
        self.fc2 = nn.Linear(20, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(len(x), -1)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Convolutional(nn.Module):
    """A stem, a body with BatchNorm, pooling, and a head."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.flatten(self.pool(F.relu(self.body(self.stem(x)))), 1)))


class WithMethods(Convolutional):
    """The convention ``features`` and ``classify``; the head is not one linear layer."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes)
        self.head = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, num_classes))  # type: ignore[assignment]

    def features(self, x: Tensor) -> Tensor:
        return torch.flatten(self.pool(F.relu(self.body(self.stem(x)))), 1)

    def classify(self, h: Tensor) -> Tensor:
        return self.head(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


class HuggingFaceStyle(nn.Module):
    """A transformer on patches that returns an object, as ``transformers`` does."""

    def __init__(self, num_classes: int = 10, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        hidden = self.encoder(torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], dim=1))
        return SimpleNamespace(loss=None, logits=self.classifier(hidden[:, 0]), hidden_states=hidden)


class TwoInputs(nn.Module):
    """An image and a row of a table."""

    def __init__(self, num_classes: int, input_shape: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        (channels, _, _), (columns,) = input_shape
        self.image = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.table = nn.Linear(columns, 3)
        self.head = nn.Linear(7, num_classes)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        return self.head(torch.cat([self.image(image), self.table(row)], dim=1))


class Returning(nn.Module):
    """Returns its logits in a container."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.kind = Convolutional(), kind

    def forward(self, x: Tensor) -> Any:
        z = self.net(x)
        return {"tuple": (x, z), "dict": {"image": x, "scores": z}, "nothing": None, "one": (z,)}[self.kind]


class TextMasked(nn.Module):
    """Takes token ids and the mask of those that are not padding."""

    def __init__(self, num_classes: int, inputs: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(inputs.vocabulary, 6)
        self.out = nn.Linear(6, num_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        weights = attention_mask / attention_mask.sum(1, keepdim=True).clamp_min(1)
        return {"logits": self.out((self.embedding(input_ids) * weights[..., None]).sum(1))}
