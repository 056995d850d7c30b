"""Text as a modality of scenarios and public sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedchoir.data.domain import Domain, Progress, Raw, domain_from
from fedchoir.data.options import DataOptions
from fedchoir.data.samples import Samples, unlabeled
from fedchoir.data.text.amazon_reviews import DOMAINS, load_reviews
from fedchoir.data.text.files import SUFFIXES, read_texts
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.text.tokenizers import (
    GivenIds,
    HashTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    VocabularyTokenizer,
    encode,
    read_tokenizer,
)
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo

__all__ = [
    "DEFAULT_PUBLIC", "HOMOGENEOUS_MODEL", "MODELS", "PUBLIC", "PUBLIC_FILES", "SUFFIXES", "TYPES",
    "load_domains", "load_public", "read_clients",
]  # fmt: skip

TYPES: tuple[type, ...] = (TextSet, HashTokenizer, VocabularyTokenizer, HuggingFaceTokenizer, GivenIds)
MODELS = ("bag_of_embeddings", "textcnn", "bigru", "transformer")
HOMOGENEOUS_MODEL = "textcnn"
PUBLIC_FILES = "a .jsonl, .jsonl.gz, .csv or .txt file of texts"
DEFAULT_PUBLIC = ""  # texts cannot be generated
PUBLIC: dict[str, str] = {"amazon-reviews": "a quarter of the reviews of every domain, without labels"}


def tokenizer_of(options: DataOptions) -> Tokenizer:
    """The tokenizer of a file, or hashed words."""
    if options.tokenizer is None:
        return HashTokenizer(options.vocabulary)
    return read_tokenizer(Path(options.tokenizer).expanduser())


def load_domains(
    info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
) -> list[Domain]:
    """The domains of the Amazon reviews."""
    tokenizer = tokenizer_of(options)
    return [load_reviews(name, root, tokenizer, options.max_length)[0] for name in info.domains]


def read_clients(paths: Mapping[str, Path], options: DataOptions, progress: Progress | None) -> list[Domain]:
    """One domain for each file of texts."""
    tokenizer = tokenizer_of(options)
    domains = []
    for count, (name, path) in enumerate(paths.items(), start=1):
        domains.append(domain_from(_raw(path, tokenizer, options), name))
        if progress is not None:
            progress(count, len(paths), name)
    return domains


def _raw(path: Path, tokenizer: Tokenizer, options: DataOptions) -> Raw:
    found = read_texts(path, options.text_column, options.target or "")
    assert found.labels is not None
    classes = tuple(sorted(set(found.labels)))
    labels = torch.tensor([classes.index(label) for label in found.labels])
    ids = encode(found.texts, tokenizer, options.max_length)
    samples = TextSet(ids, labels, tokenizer, options.text_column)
    if found.splits is None:
        return Raw(samples, None, classes)
    is_test = torch.tensor([split == "test" for split in found.splits])
    if bool(is_test.all()) or not bool(is_test.any()):
        raise UsageError(f"{path}: every text has the split {found.splits[0]!r}; wanted train and test")
    return Raw(samples.subset(~is_test), samples.subset(is_test), classes)


def load_public(request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
    """The unlabeled share of the Amazon reviews, or the texts of a file, with the clients' tokenizer."""
    assert isinstance(like, TextSet)
    tokenizer, length = like.tokenizer, like.inputs.shape[1]
    if request.name in PUBLIC:
        used = [name for name in DOMAINS if name != request.held_out]
        first, *others = [load_reviews(name, request.root, tokenizer, length)[1] for name in used]
        return request.name, first.joined(*others), ()
    path = Path(request.name).expanduser()
    if not path.is_file() or not path.name.endswith((*SUFFIXES, ".csv", ".txt")):
        raise UsageError(
            f"public: {request.name!r} is neither {', '.join(PUBLIC)} nor a file of texts (.jsonl, .jsonl.gz, .csv "
            "with a text column, .txt with one text a line); give one with --public: texts cannot be generated"
        )
    texts = read_texts(path, like.text_column, labelled=False, strict=False).texts
    return request.name, TextSet(encode(texts, tokenizer, length), unlabeled(len(texts)), tokenizer), ()
