"""Labelled texts as token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedchoir.data.samples import Samples, describe
from fedchoir.data.text.tokenizers import HashTokenizer, Tokenizer
from fedchoir.utils.input_spec import InputSpec

DROPOUT = {"weak": 0.1, "token-dropout": 0.1, "strong": 0.3}
"""The share of tokens that each augmentation removes."""


@dataclass(frozen=True)
class Tokens:
    """Token ids as they are. It keeps the tokenizer for new texts, such as those of an exported model."""

    tokenizer: Tokenizer
    length: int

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text-tokens", "length": self.length, "tokenizer": self.tokenizer.to_json()}


@dataclass(frozen=True)
class TextSet(Samples):
    """Labelled texts: ``inputs`` are token ids, int64, N×length, padded with 0 at the end.

    Attributes:
        tokenizer: made the ids.
        text_column: the option of that name with which the texts were read, for those of a public set.
    """

    tokenizer: Tokenizer = field(default_factory=HashTokenizer)
    text_column: str = ""

    modality: ClassVar[str] = "text"
    augmentations: ClassVar[tuple[str, ...]] = tuple(DROPOUT)

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.int64 or self.inputs.ndim != 2:
            raise ValueError(f"text: int64 N×length wanted, not {describe(self.inputs)}")
        super().__post_init__()

    @property
    def transform(self) -> Tokens:
        return Tokens(self.tokenizer, self.inputs.shape[1])

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec("text", (self.inputs.shape[1],), vocabulary=self.tokenizer.vocabulary)

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind not in DROPOUT:
            return super().augment(inputs, kind, generator)
        return drop_tokens(inputs, DROPOUT[kind], generator)


def drop_tokens(tokens: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Remove a share of the tokens of every text; the others move up. A text keeps its first token.

    >>> drop_tokens(torch.tensor([[5, 6, 7, 0]]), 0.99, torch.Generator().manual_seed(0))
    tensor([[5, 0, 0, 0]])
    """
    kept = torch.rand(tokens.shape, generator=generator) >= share
    kept[:, 0] = True
    kept = kept.to(tokens.device, non_blocking=True) & (tokens != 0)
    order = (~kept).byte().argsort(dim=1, stable=True)
    return (tokens * kept).gather(1, order)
