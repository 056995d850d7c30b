"""New texts for a trained model: JSON lines, CSV, or one text a line."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, numbered, refused
from fedchoir.data.text.files import read_texts
from fedchoir.data.text.text_set import Tokens
from fedchoir.data.text.tokenizers import encode, tokenizer_from_json

MEMORY = "a list of texts"


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    tokens = Tokens(tokenizer_from_json(content["transform"]["tokenizer"]), int(content["transform"]["length"]))

    def read(path: Path) -> tuple[list[str], Tensor]:
        texts = read_texts(path, options.text_column, labelled=False, strict=False).texts
        inputs = encode(texts, tokens.tokenizer, tokens.length)
        return numbered(inputs), inputs

    def convert(data: Any) -> Tensor:
        if not isinstance(data, list | tuple) or not all(isinstance(text, str) for text in data):
            raise refused(data, MEMORY)
        return encode(list(data), tokens.tokenizer, tokens.length)

    return Preprocessing(read, tokens, convert, MEMORY)
