"""Tokenizers: the same ids at every site, and files that cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedchoir.data.text.tokenizers import (
    GivenIds,
    HashTokenizer,
    HuggingFaceTokenizer,
    VocabularyTokenizer,
    encode,
    read_tokenizer,
    tokenizer_from_json,
)
from fedchoir.utils.errors import UsageError


def test_hashed_ids_do_not_depend_on_the_process() -> None:
    code = "from fedchoir.data.text.tokenizers import HashTokenizer; print(HashTokenizer(1000).ids('A good book!'))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = HashTokenizer(1000).ids("A good book!")
    assert there.strip() == str(here)
    assert all(0 < i < 1000 for i in here)
    assert here == HashTokenizer(1000).ids("a GOOD  book !")


def test_hashed_words_spread_over_the_vocabulary() -> None:
    ids = [HashTokenizer(64).ids(f"word{i}")[0] for i in range(6300)]
    counts = torch.tensor(ids).bincount(minlength=64)
    assert counts[0] == 0  # padding
    assert counts[1:].min() > 60
    assert counts[1:].max() < 150


def test_a_vocabulary_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("good\nBad\n\ngood\n.\n")
    tokenizer = read_tokenizer(path)
    assert tokenizer.vocabulary == 5
    assert tokenizer.ids("Bad, good.") == [3, 1, 2, 4]


def trained(pad: str) -> str:
    """The content of a tokenizer.json whose first token is ``pad``."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    library = Tokenizer(models.WordLevel({pad: 0, "[UNK]": 1, "good": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.enable_padding(length=50)
    library.enable_truncation(1)
    return str(library.to_str())


@pytest.mark.parametrize(("pad", "ids", "size"), [("[PAD]", [2, 1], 3), ("<pad>", [2, 1], 3), ("a", [3, 2], 4)])
def test_a_hugging_face_tokenizer_keeps_its_ids_where_0_is_padding(
    pad: str, ids: list[int], size: int, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(trained(pad))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.ids("good other") == ids
    assert tokenizer.vocabulary == size


def test_long_texts_are_cut_and_short_ones_padded() -> None:
    tokens = encode(["good good bad", "", "bad"], VocabularyTokenizer(("good", "bad")), 2)
    assert tokens.tolist() == [[2, 2], [0, 0], [3, 0]]
    assert tokens.dtype == torch.int64


def test_every_tokenizer_survives_export() -> None:
    for one in (HashTokenizer(50), VocabularyTokenizer(("a", "b")), HuggingFaceTokenizer(trained("[PAD]"))):
        copy = tokenizer_from_json(one.to_json())
        assert copy == one
        assert copy.ids("a good b") == one.ids("a good b")
    with pytest.raises(UsageError, match="its own tokenizer is needed"):
        tokenizer_from_json(GivenIds(7).to_json()).ids("a")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", b"", "is empty; wanted one word a line"),
        ("a.txt", b"\xff\xfe", "not UTF-8 text"),
        ("a.json", b"{}", r"not a Hugging Face tokenizer\.json"),
        ("a.json", b"not JSON", r"not a Hugging Face tokenizer\.json"),
    ],
)
def test_a_bad_file_is_one_line(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=why):
        read_tokenizer(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_tokenizer(tmp_path / "none.txt")
