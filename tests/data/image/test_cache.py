"""The cache of decoded images: built once, completed after a stop, built again if it is stale or damaged."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from fedchoir.data.image import cache
from fedchoir.data.image.cache import HEADER, Header, cached
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.resize import Resize
from fedchoir.data.mapped import HASHES, ROWS, MappedTensor
from fedchoir.utils.errors import UsageError

DECODER = Decoder(Resize.to(16))
ROW = 3 * 16 * 16


@pytest.fixture
def paths(tmp_path, write_tree):
    return write_tree(tmp_path / "site", ["a", "b"], per_class=5, side=16)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "cache"


class Counter:
    """Counts decoded images."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, done: int) -> None:
        self.seen.append(done)


def build(paths: list[Path], folder: Path) -> tuple[torch.Tensor, list[int], tuple[str, ...]]:
    """The images, the ticks of what had to be decoded, and the notes."""
    tick = Counter()
    rows, _, notes = cached(paths, DECODER, folder, tick)
    return MappedTensor((rows,), torch.arange(len(rows)))[:], tick.seen, notes


def decoded(paths: list[Path]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(DECODER(path)[0]) for path in paths])


def test_built_once_then_read(paths, folder):
    images, ticks, notes = build(paths, folder)
    assert torch.equal(images, decoded(paths))
    assert (ticks, notes) == ([*range(1, 11)], ())
    again, ticks, notes = build(paths, folder)
    assert torch.equal(again, images)
    assert (ticks, notes) == ([], ())


def test_only_the_owner_can_read_it(paths, folder):
    build(paths, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in (ROWS, HASHES):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_a_stopped_build_continues(paths, folder, monkeypatch):
    monkeypatch.setattr(cache, "CHUNK_BYTES", 3 * ROW)
    whole = paths[7].read_bytes()
    paths[7].write_bytes(b"junk")
    with pytest.raises(UsageError, match="not a readable image"):
        build(paths, folder)
    header = Header.read(folder)
    assert header is not None
    assert header.done == 6
    with (folder / ROWS).open("ab") as file:
        file.write(b"half a chunk")
    paths[7].write_bytes(whole)
    images, ticks, notes = build(paths, folder)
    assert (ticks, notes) == ([7, 8, 9, 10], ())
    assert torch.equal(images, decoded(paths))


def test_files_that_are_added_at_the_end_are_appended(paths, folder):
    build(paths[:8], folder)
    images, ticks, notes = build(paths, folder)
    assert (ticks, notes) == ([9, 10], ())
    assert torch.equal(images, decoded(paths))


@pytest.mark.parametrize("change", ["content", "time", "removed", "order"])
def test_a_stale_cache_is_built_again_with_a_note(paths, folder, change):
    build(paths, folder)
    if change == "content":
        Image.new("RGB", (20, 20), "red").save(paths[3])
    elif change == "time":
        os.utime(paths[3], ns=(1, 1))
    else:
        paths = paths[1:] if change == "removed" else paths[::-1]
    images, ticks, notes = build(paths, folder)
    assert len(ticks) == len(paths)
    assert notes == (f"the cache {folder} had images of files that have changed; it was built again",)
    assert torch.equal(images, decoded(paths))


@pytest.mark.parametrize("damage", ["header", "truncated header", "field", "hashes", "short", "missing"])
def test_a_damaged_cache_is_built_again_with_a_note(paths, folder, damage):
    build(paths, folder)
    if damage == "header":
        content = json.loads((folder / HEADER).read_text())
        (folder / HEADER).write_text(json.dumps({**content, "done": 9}))
    elif damage == "truncated header":
        (folder / HEADER).write_text((folder / HEADER).read_text()[:-20])
    elif damage == "field":
        (folder / HEADER).write_text("{}")
    elif damage == "hashes":
        (folder / HASHES).write_bytes(bytes(160))
    elif damage == "short":
        os.truncate(folder / ROWS, 10 * ROW - 1)
    else:
        (folder / ROWS).unlink()
    images, ticks, notes = build(paths, folder)
    assert (len(ticks), notes) == (10, (f"the cache {folder} was damaged; it was built again",))
    assert torch.equal(images, decoded(paths))


def test_a_flipped_bit_is_found_when_the_image_is_read(paths, folder):
    build(paths, folder)
    with (folder / ROWS).open("r+b") as file:
        file.seek(4 * ROW)
        byte = file.read(1)
        file.seek(4 * ROW)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(UsageError, match="sample 4 was damaged on disk"):
        build(paths, folder)
    images, ticks, _ = build(paths, folder)
    assert len(ticks) == 10
    assert torch.equal(images, decoded(paths))


def test_two_processes_at_once_build_it_once(paths, folder):
    ticks: list[list[int]] = []
    threads = [threading.Thread(target=lambda: ticks.append(build(paths, folder)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, ticks)) == [0, 0, 0, 10]


def test_a_reader_keeps_its_images_while_they_are_built_again(paths, folder):
    rows, _, _ = cached(paths, DECODER, folder, Counter())
    reader = MappedTensor((rows,), torch.arange(10))
    before = reader[:5].clone()
    expected = decoded(paths)
    Image.new("RGB", (20, 20), "red").save(paths[8])
    build(paths, folder)
    assert torch.equal(before, expected[:5])
    assert torch.equal(reader[5:], expected[5:])


def test_no_space_and_no_permission_are_one_line(paths, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(UsageError, match=r"10 images of 16×16 pixels need 0\.0 GB of disk.*--cache"):
        build(paths, folder)
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written: .*; choose another with --cache"):
        build(paths, tmp_path / "file" / "cache")
    with pytest.raises(UsageError, match=r"gone\.png: no such file"):
        build([*paths, tmp_path / "gone.png"], folder)


def test_the_loader_caches_what_does_not_fit_into_memory(paths, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCHOIR_CACHE", str(tmp_path / "user"))
    loader = ImageLoader(DECODER, memory=15 * ROW)
    first, _ = loader.load(paths, tmp_path / "site", "train")
    assert isinstance(first, torch.Tensor)
    assert not (tmp_path / "user").exists()
    second, _ = loader.load(paths, tmp_path / "site", "test")
    assert isinstance(second, MappedTensor)
    assert torch.equal(second[:], first)
    (place,) = (tmp_path / "user" / "images").iterdir()
    assert place.name.startswith("site-test-")


def test_the_loader_caches_everything_in_a_given_folder(paths, tmp_path, folder):
    for split in ("train", "test"):
        images, _ = ImageLoader(DECODER, folder).load(paths, tmp_path / "site", split)
        assert isinstance(images, torch.Tensor)
        assert torch.equal(images, decoded(paths))
    bigger, _ = ImageLoader(Decoder(Resize.to(20)), folder).load(paths, tmp_path / "site", "train")
    assert bigger.shape == (10, 3, 20, 20)
    assert len(list(folder.iterdir())) == 3
