"""Layers that models of series and of text share. A sequence B×width×time is a feature map of height 1."""

from torch import Tensor, nn

DROPOUT = 0.1
MAX_HEADS = 4


class AsMap(nn.Module):
    """A sequence as a feature map: B×width×time → B×width×1×time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2)


class BiGRU(nn.Module):
    """One GRU layer in each direction: B×time×inputs → B×time×(2·hidden)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


def transformer(width: int, layers: int) -> nn.TransformerEncoder:
    """Pre-norm encoder layers on B×time×width, as many heads as divide the width, at most four."""
    heads = next(heads for heads in range(MAX_HEADS, 0, -1) if width % heads == 0)
    layer = nn.TransformerEncoderLayer(
        width, heads, dim_feedforward=2 * width, dropout=DROPOUT, activation="gelu", batch_first=True, norm_first=True
    )
    layer.self_attn.dropout = 0.0  # dropout of attention weights would rule out the fast kernels
    return nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
