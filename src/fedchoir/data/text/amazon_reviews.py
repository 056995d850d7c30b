"""Multi-domain sentiment: Amazon reviews of books, DVDs, electronics and kitchen goods (Blitzer et al., ACL 2007).

Each domain has 1,000 positive and 1,000 negative reviews. A quarter of every domain, without labels, is the public set.
"""

import html
import re
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.data.decoded import DECODED
from fedchoir.data.domain import SPLIT_SEED, Domain, Raw, domain_from
from fedchoir.data.image.files import data_root, find_folder
from fedchoir.data.samples import unlabeled
from fedchoir.data.splits import complement, stratified_sample, unseen
from fedchoir.data.text.files import read_rows, read_texts
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.text.tokenizers import Tokenizer, encode
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

DOMAINS = ("books", "dvd", "electronics", "kitchen")
CLASSES = ("negative", "positive")
PUBLIC_SHARE = 0.25
GET = (
    "the multi-domain sentiment data set of Blitzer et al. (www.cs.jhu.edu/~mdredze/datasets/sentiment), unpacked as "
    "sorted_data_acl/<domain>/positive.review and negative.review, or amazon_reviews/<domain>.jsonl.gz"
)

_FIELD = r"<{0}>\s*(.*?)\s*</{0}>"


def load_reviews(name: str, root: Path | None, tokenizer: Tokenizer, length: int) -> tuple[Domain, TextSet]:
    """One domain without its share of the public set, and that share."""
    ids, labels = DECODED.get(_files(name, root), (tokenizer, length), lambda: _encoded(name, root, tokenizer, length))
    samples = TextSet(ids, labels, tokenizer)
    size = round(PUBLIC_SHARE * len(samples))
    chosen = stratified_sample(samples.labels, size, generator(SPLIT_SEED, "public reviews", name))
    private = samples.subset(complement(chosen, len(samples)))
    public = samples.subset(chosen)
    public = public.subset(unseen(public, private))  # some reviews occur twice
    domain = domain_from(Raw(private, None, CLASSES), name)
    return domain, TextSet(public.inputs, unlabeled(len(public)), tokenizer)


def _encoded(name: str, root: Path | None, tokenizer: Tokenizer, length: int) -> tuple[Tensor, Tensor]:
    texts, labels = read_reviews(name, root)
    return encode(texts, tokenizer, length), torch.tensor(labels)


def read_reviews(name: str, root: Path | None) -> tuple[list[str], list[int]]:
    """Title and text of every review in one string, and whether it is positive."""
    folder = data_root(root)
    if not (place := found(name, root)):
        raise UsageError(
            f"amazon-reviews: no amazon_reviews/{name}.jsonl.gz or sorted_data_acl/{name}/ in the data root {folder} "
            f"(--data-root or FEDCHOIR_DATA); get it: {GET}"
        )
    if (folder / place).is_file():
        rows = _packed(folder / place)
    else:
        rows = [(*review, label) for label in CLASSES for review in _original(folder / place / f"{label}.review")]
    return [f"{title}\n{text}" for title, text, _ in rows], [CLASSES.index(label) for *_, label in rows]


def _files(name: str, root: Path | None) -> list[Path]:
    """The files of a domain."""
    place = data_root(root) / found(name, root)
    return [place] if place.is_file() else [place / f"{label}.review" for label in CLASSES]


def found(name: str, root: Path | None) -> str:
    """The path of a domain relative to the data root; empty if it is missing."""
    folder = data_root(root)
    packed = folder / "amazon_reviews" / f"{name}.jsonl.gz"
    place = packed if packed.is_file() else find_folder(folder, f"sorted_data_acl/{name}")
    return "" if place is None else str(place.relative_to(folder))


def _packed(path: Path) -> list[tuple[str, str, str]]:
    """(title, text, label) of the reviews in a file of JSON lines."""
    found = read_texts(path)
    assert found.labels is not None
    for number, label in enumerate(found.labels, start=1):
        if label not in CLASSES:
            raise UsageError(f"{path}: record {number} has the label {label!r}; wanted {' or '.join(CLASSES)}")
    titles = [str(row.get("title", "")) for row in read_rows(path)]
    return list(zip(titles, found.texts, found.labels, strict=True))


def _original(path: Path) -> list[tuple[str, str]]:
    """(title, text) of the reviews in a file of the authors, which is not well-formed XML."""
    try:
        content = html.unescape(path.read_text(encoding="latin-1"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    titles, texts = (re.findall(_FIELD.format(tag), content, re.DOTALL) for tag in ("title", "review_text"))
    if not texts or len(titles) != len(texts):
        raise UsageError(f"{path}: {len(texts)} texts and {len(titles)} titles found; wanted one of each per <review>")
    return list(zip(titles, texts, strict=True))
