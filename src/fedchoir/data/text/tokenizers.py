"""Text → token ids. All sites of a federation must have the same tokenizer; 0 is padding.

Without a file, words are hashed to ids, so sites agree without exchanging a vocabulary. With a file, it is a vocabulary
(one word a line) or a Hugging Face tokenizer (``tokenizer.json``).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedchoir.utils.errors import UsageError

_WORD = re.compile(r"\w+|[^\w\s]")


class Tokenizer(Protocol):
    """Turns a text into ids from 1 to ``vocabulary`` − 1."""

    @property
    def vocabulary(self) -> int: ...

    def ids(self, text: str) -> list[int]: ...

    def to_json(self) -> dict[str, Any]:
        """Its kind and what identifies it."""


def words(text: str) -> list[str]:
    """Words in lower case and single punctuation marks.

    >>> words("It doesn't work!")
    ['it', 'doesn', "'", 't', 'work', '!']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class HashTokenizer:
    """A word's id is a hash of it. Different words may share an id: fewer with a larger vocabulary."""

    vocabulary: int = 8192

    def ids(self, text: str) -> list[int]:
        return [1 + word_hash(word) % (self.vocabulary - 1) for word in words(text)]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "hash", "vocabulary": self.vocabulary}


@lru_cache(maxsize=1 << 16)
def word_hash(word: str) -> int:
    """A number that depends on the word alone, not on the process or the machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class VocabularyTokenizer:
    """A word's id is its line in a file, from 2; 1 stands for every other word."""

    entries: tuple[str, ...]

    @cached_property
    def _id(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.entries, start=2)}

    @property
    def vocabulary(self) -> int:
        return len(self.entries) + 2

    def ids(self, text: str) -> list[int]:
        return [self._id.get(word, 1) for word in words(text)]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "vocabulary", "entries": list(self.entries)}


@dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` library. Where its id 0 is not padding, all ids are one higher.

    Attributes:
        source: the content of its ``tokenizer.json``.
    """

    source: str

    @cached_property
    def _library(self) -> Any:
        try:
            from tokenizers import Tokenizer as LibraryTokenizer
        except ImportError:
            raise UsageError(
                "tokenizer: a tokenizer.json needs the tokenizers library; pip install 'fedchoir[text]'"
            ) from None
        library = LibraryTokenizer.from_str(self.source)
        library.no_padding()
        library.no_truncation()
        return library

    @cached_property
    def _shift(self) -> int:
        return 0 if (self._library.id_to_token(0) or "").strip("[]<>|").lower() == "pad" else 1

    @property
    def vocabulary(self) -> int:
        return int(self._library.get_vocab_size()) + self._shift

    def ids(self, text: str) -> list[int]:
        return [i + self._shift for i in self._library.encode(text).ids]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "hugging-face", "source": self.source}


@dataclass(frozen=True)
class GivenIds:
    """Token ids that a user's Dataset returned. Only their number is known, so new texts cannot be tokenised."""

    vocabulary: int

    def ids(self, text: str) -> list[int]:
        raise UsageError("the token ids came from a Dataset, so its own tokenizer is needed for new texts")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "given", "vocabulary": self.vocabulary}


def tokenizer_from_json(content: dict[str, Any]) -> Tokenizer:
    """The inverse of ``to_json``.

    >>> tokenizer_from_json(HashTokenizer(100).to_json()).vocabulary
    100
    """
    kinds = {
        "hash": HashTokenizer,
        "vocabulary": VocabularyTokenizer,
        "hugging-face": HuggingFaceTokenizer,
        "given": GivenIds,
    }
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items() if key != "kind"}
    tokenizer: Tokenizer = kinds[content["kind"]](**values)
    return tokenizer


@lru_cache(maxsize=4)
def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a file: ``.json`` of Hugging Face, or text with one word a line, most frequent first."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"tokenizer: {path} cannot be read: {reason}") from None
    if path.suffix == ".json":
        try:
            tokenizer = HuggingFaceTokenizer(text)
            assert tokenizer.vocabulary > 1
            return tokenizer
        except UsageError:
            raise
        except Exception as error:  # the library raises plain exceptions
            reason = " ".join(str(error).split())
            raise UsageError(f"tokenizer: {path} is not a Hugging Face tokenizer.json ({reason})") from None
    entries = tuple(dict.fromkeys(line.strip().lower() for line in text.splitlines() if line.strip()))
    if not entries:
        raise UsageError(f"tokenizer: {path} is empty; wanted one word a line")
    return VocabularyTokenizer(entries)


def encode(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> Tensor:
    """int64 N×length: the first ``length`` tokens of every text, padded with 0.

    >>> encode(["good", "not good"], VocabularyTokenizer(("good", "bad")), 3)
    tensor([[2, 0, 0],
            [1, 2, 0]])
    """
    tokens = torch.zeros((len(texts), length), dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = tokenizer.ids(text)[:length]
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return tokens
