"""Decoded files that the runs of a process share."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedchoir import Experiment
from fedchoir.data import decoded
from fedchoir.data.decoded import DECODED, Decoded
from fedchoir.data.image import files, loading
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.resize import Resize
from fedchoir.data.text import amazon_reviews
from fedchoir.data.text.tokenizers import HashTokenizer
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare


class Reader:
    """Counts how often it decodes; a content has 100 bytes."""

    def __init__(self, kept: Decoded) -> None:
        self.kept, self.count = kept, 0

    def __call__(self, *paths: Path, how: str = "") -> Tensor:
        return self.kept.get(paths, how, self._decode)

    def _decode(self) -> Tensor:
        self.count += 1
        return torch.full((100,), self.count, dtype=torch.uint8)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in "abc"]
    for path in made:
        path.write_text(path.name)
    return made


def test_the_same_files_are_decoded_once(paths: list[Path]) -> None:
    read = Reader(Decoded(1000))
    first = read(*paths)
    assert read(*paths) is first
    assert read.count == 1
    read(*paths[:2])
    read(*paths, how="larger")
    assert read.count == 3


def test_a_file_that_has_changed_is_decoded_again(paths: list[Path]) -> None:
    read = Reader(Decoded(1000))
    read(*paths)
    paths[1].write_text("longer")
    read(*paths)
    assert read.count == 2
    stat = paths[1].stat()
    os.utime(paths[1], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # of the same size
    read(*paths)
    assert read.count == 3
    read(*paths)
    assert read.count == 3


def test_what_was_not_used_for_longest_leaves_first(paths: list[Path]) -> None:
    a, b, c = paths
    read = Reader(Decoded(250))  # two contents
    read(a), read(b), read(a), read(c)
    assert read.count == 3
    read(a), read(c)
    assert read.count == 3
    read(b)
    assert read.count == 4


def test_a_content_above_the_limit_is_not_kept(paths: list[Path]) -> None:
    read = Reader(Decoded(99))
    assert read(paths[0]).sum() == 100
    assert read(paths[0]).sum() == 200


def test_a_missing_file_is_left_to_who_decodes(tmp_path: Path) -> None:
    def decode() -> Tensor:
        raise FileNotFoundError("which one is missing")

    with pytest.raises(FileNotFoundError, match="which one is missing"):
        Decoded(1000).get([tmp_path / "absent"], "", decode)


def test_an_error_is_not_kept(paths: list[Path]) -> None:
    kept, read = Decoded(1000), Reader(Decoded(1000))
    read.kept = kept

    def fails() -> Tensor:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        kept.get(paths, "", fails)
    assert read(*paths).sum() == 100


def test_a_single_run_keeps_nothing(paths: list[Path]) -> None:
    assert DECODED.limit == 0
    read = Reader(DECODED)
    read(*paths), read(*paths)
    assert read.count == 2


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoded]:
    """What a worker of a sweep has instead of `DECODED`."""
    shared = Decoded(2**20)
    for module in (decoded, files, loading, amazon_reviews):
        monkeypatch.setattr(module, "DECODED", shared)
    return shared


def test_two_runs_on_the_same_files_get_the_same_data(
    shapes: Path, kept: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reads no file."""
    plan = make_plan(Experiment(method="solo", scenario=str(shapes), device="cpu", settings={"image_size": 16}))
    _, one, _ = prepare(plan)
    monkeypatch.setattr(files, "read_arrays", lambda path: pytest.fail(f"{path} is read again"))
    _, two, _ = prepare(plan)
    for first, second in zip(one.clients, two.clients, strict=True):
        assert torch.equal(first.train.inputs, second.train.inputs)
        assert torch.equal(first.train.labels, second.train.labels)


def test_image_files_are_decoded_once_until_one_changes(
    kept: Decoded, write_tree: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_tree(tmp_path / "site", ("cat", "dog"), per_class=3)
    read: list[str] = []
    decode = Decoder.__call__

    def recorded(self: Decoder, path: Path) -> Any:
        read.append(path.name)
        return decode(self, path)

    def load(side: int = 8, chosen: Sequence[Path] = paths) -> Tensor:
        read.clear()
        images, _ = ImageLoader(Decoder(Resize.to(side))).load(chosen, tmp_path / "site", "train")
        return images

    monkeypatch.setattr(Decoder, "__call__", recorded)
    first = load()
    assert len(read) == 6
    assert torch.equal(load(), first)
    assert not read
    load(side=12), load(chosen=paths[:2])
    assert len(read) == 2
    write_tree(tmp_path / "site", ("dog",), per_class=1, side=14, seed=1)  # writes the first dog again
    changed = load()
    assert len(read) == 6
    assert [torch.equal(one, two) for one, two in zip(changed, first, strict=True)] == [True] * 3 + [False] + [True] * 2
    assert torch.equal(load(), changed)
    assert not read


def test_reviews_are_read_once_until_their_file_changes(
    kept: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each domain on its own."""
    read: list[str] = []
    read_reviews = amazon_reviews.read_reviews

    def recorded(name: str, root: Path | None) -> Any:
        read.append(name)
        return read_reviews(name, root)

    def write(name: str, word: str) -> None:
        rows = ({"label": ("negative", "positive")[i % 2], "title": word, "text": f"{word} {i}"} for i in range(40))
        (tmp_path / "amazon_reviews" / f"{name}.jsonl.gz").write_bytes(
            gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        )

    def load(name: str, length: int = 8) -> tuple[Tensor, Tensor]:
        read.clear()
        domain, public = amazon_reviews.load_reviews(name, tmp_path, HashTokenizer(500), length)
        return domain.train.inputs, public.inputs

    monkeypatch.setattr(amazon_reviews, "read_reviews", recorded)
    (tmp_path / "amazon_reviews").mkdir()
    write("books", "book"), write("dvd", "film")
    first, other = load("books"), load("dvd")
    assert read == ["dvd"]
    assert all(torch.equal(one, two) for one, two in zip(load("books"), first, strict=True))
    assert not read
    load("books", length=6)
    assert read == ["books"]
    write("books", "another book")
    changed = load("books")
    assert read == ["books"]
    assert not torch.equal(changed[0], first[0])
    assert all(torch.equal(one, two) for one, two in zip(load("dvd"), other, strict=True))
    assert not read
