"""Small encoders for token ids. The feature map is B×width×1×length and zero at padding.

``@WIDTH`` is the width of an embedding, and of what follows it: filters of each length (``textcnn``), hidden units a
direction (``bigru``).
"""

import torch
from torch import Tensor, nn

from fedchoir.models.base import Architecture, Model, Spec, global_pool
from fedchoir.models.sequence import DROPOUT, BiGRU, transformer

FILTERS = (1, 3, 5)  # tokens that a filter of the TextCNN covers; odd, so that the map keeps the length


def _embedding(spec: Spec) -> nn.Embedding:
    embedding = nn.Embedding(spec.inputs.vocabulary, spec.base_width, padding_idx=0)
    with torch.no_grad():
        embedding.weight *= spec.base_width**-0.5  # vectors of length 1, so that a mean of them is not small noise
    return embedding


class TokenMap(nn.Module):
    """Embeddings, an encoder of them (B×length×width), and the feature map of its outputs.

    Outputs at padding are 0. The others are scaled by length / tokens: the mean over positions is that over tokens.
    """

    def __init__(self, embedding: nn.Embedding, encoder: nn.Module) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder

    def forward(self, tokens: Tensor) -> Tensor:
        present = tokens != 0
        weight = present * (tokens.shape[1] / present.sum(dim=1, keepdim=True).clamp_min(1))
        outputs = self.encode(self.embedding(tokens), present)
        return (outputs * weight.to(outputs)[..., None]).transpose(1, 2).unsqueeze(2)

    def encode(self, embedded: Tensor, present: Tensor) -> Tensor:
        return self.encoder(embedded)


class TransformerMap(TokenMap):
    """Learned positions, and a transformer that does not attend to padding."""

    def __init__(self, embedding: nn.Embedding, length: int, layers: int) -> None:
        width = embedding.embedding_dim
        super().__init__(embedding, transformer(width, layers))
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))

    def encode(self, embedded: Tensor, present: Tensor) -> Tensor:
        ignored = ~present
        ignored[:, 0] = False  # an empty text would have nothing to attend to
        return self.encoder(embedded + self.positions, src_key_padding_mask=ignored)


class FilterMap(nn.Module):
    """Embeddings, filters of several lengths and ReLU: B×length → B×(3·filters)×1×length, zero at padding."""

    def __init__(self, embedding: nn.Embedding, filters: int) -> None:
        super().__init__()
        self.embedding = embedding
        width = embedding.embedding_dim
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, size, padding="same") for size in FILTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens).transpose(1, 2)
        found = torch.cat([convolution(embedded) for convolution in self.filters], dim=1).relu()
        return (found * (tokens != 0).to(found)[:, None]).unsqueeze(2)


class MaxOverText(nn.Module):
    """The maximum over all positions: B×C×1×length → B×C. ONNX has no adaptive maximum."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(dim=(2, 3))


def _bag_of_embeddings(spec: Spec) -> Model:
    """The mean of the embeddings of all tokens and a linear classifier (Joulin et al.'s fastText, 2017)."""
    w = spec.base_width
    trunk = TokenMap(_embedding(spec), nn.Identity())
    return spec.model(trunk, global_pool(), nn.Linear(w, spec.num_classes), map_dim=w, feature_dim=w)


def _textcnn(spec: Spec) -> Model:
    """Filters over 1, 3 and 5 tokens, the maximum of each over the text, dropout 0.5, after Kim (EMNLP 2014)."""
    w = spec.base_width
    width = len(FILTERS) * w
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(width, spec.num_classes))
    return spec.model(FilterMap(_embedding(spec), w), MaxOverText(), head, map_dim=width, feature_dim=width)


def _bigru(spec: Spec) -> Model:
    """A GRU layer in each direction; features are the mean over tokens."""
    w = spec.base_width
    trunk = TokenMap(_embedding(spec), BiGRU(w, w))
    return spec.model(trunk, global_pool(), nn.Linear(2 * w, spec.num_classes), map_dim=2 * w, feature_dim=2 * w)


def _transformer(spec: Spec) -> Model:
    """Two encoder layers with learned positions; features are the mean over tokens."""
    w = spec.base_width
    trunk = TransformerMap(_embedding(spec), spec.inputs.shape[0], layers=2)
    head = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(w, spec.num_classes))
    return spec.model(trunk, global_pool(), head, map_dim=w, feature_dim=w)


ARCHITECTURES = {
    "bag_of_embeddings": Architecture(
        "mean of token embeddings; @WIDTH = width of an embedding (64)", _bag_of_embeddings, 64, "text"
    ),
    "textcnn": Architecture("filters over 1, 3 and 5 tokens; @WIDTH = filters of each (64)", _textcnn, 64, "text"),
    "bigru": Architecture("GRU in both directions; @WIDTH = hidden units a direction (64)", _bigru, 64, "text"),
    "transformer": Architecture("two transformer layers; @WIDTH = width of a token (64)", _transformer, 64, "text"),
}
