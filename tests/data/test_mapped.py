"""Tensors in memory-mapped files: indexing, joining, hashes, damage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir.data import mapped
from fedchoir.data.mapped import HASHES, ROWS, MappedTensor, RowFile, join, row_hash, take
from fedchoir.utils.errors import UsageError

SHAPE = (3, 4, 5)


def rows(count: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)


@pytest.fixture
def write(tmp_path):
    """Write rows to a folder and return them as a MappedTensor."""

    def store(values: torch.Tensor, name: str = "a") -> MappedTensor:
        folder = tmp_path / name
        folder.mkdir()
        (folder / ROWS).write_bytes(values.numpy().tobytes())
        (folder / HASHES).write_bytes(b"".join(map(row_hash, values.numpy())))
        return MappedTensor((RowFile(str(folder), len(values), tuple(values.shape[1:])),), torch.arange(len(values)))

    return store


def test_every_index_gives_what_a_tensor_gives(write):
    values = rows(10)
    lazy = write(values)
    assert (lazy.shape, lazy.dtype, lazy.ndim, len(lazy)) == (values.shape, values.dtype, 4, 10)
    assert lazy.numel() == values.numel()
    for index in (slice(None), slice(2, 5), slice(8, 99), torch.tensor([7, 0, 7]), values[:, 0, 0, 0] > 99, 3, -1):
        assert torch.equal(lazy[index], values[index])
    assert lazy[torch.empty(0, dtype=torch.int64)].shape == (0, *SHAPE)


def test_subsets_of_subsets_read_nothing(write, monkeypatch):
    values = rows(10)
    lazy = write(values)
    monkeypatch.setattr(RowFile, "read", None)
    part = take(take(lazy, torch.arange(10) % 2 == 0), torch.tensor([4, 0, 2]))
    assert isinstance(part, MappedTensor)
    monkeypatch.undo()
    assert torch.equal(part[:], values[[8, 0, 4]])


def test_joined_files_and_memory(write):
    one, two, three = rows(5, 1), rows(4, 2), rows(3, 3)
    lazy = write(one, "one").take(torch.tensor([4, 1])), write(two, "two")
    both = join([lazy[0], three, lazy[1]])
    expected = torch.cat([one[[4, 1]], three, two])
    assert isinstance(both, MappedTensor)
    assert torch.equal(both[:], expected)
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(both[shuffled], expected[shuffled])
    assert torch.equal(join([both, lazy[1]])[9:], two)
    assert torch.equal(join([one, two]), torch.cat([one, two]))


def test_hashes_are_stored_and_equal_those_of_the_pixels(write):
    values = rows(6)
    values[4] = values[1]
    found = join([write(values), values[2:3]]).hashes()
    assert found[:6] == [row_hash(row) for row in values.numpy()]
    assert found[1] == found[4] != found[2] == found[6]


def test_batches_go_to_the_device(write):
    lazy = write(rows(3)).to("meta")
    assert lazy.device.type == "meta"
    assert lazy[:2].device.type == "meta"
    assert lazy.take(torch.tensor([1]))[:].device.type == "meta"


def test_a_damaged_row_is_named_and_its_file_removed(write, tmp_path):
    values = rows(6)
    lazy = write(values)
    with (tmp_path / "a" / ROWS).open("r+b") as file:
        file.seek(4 * 60 + 7)
        file.write(bytes([int(values[4].flatten()[7]) ^ 1]))
    assert torch.equal(lazy[:4], values[:4])
    with pytest.raises(UsageError, match=r"sample 4 was damaged on disk; .* builds it again"):
        lazy[torch.tensor([5, 4])]
    assert not (tmp_path / "a" / ROWS).exists()


def test_pages_are_given_back(write, monkeypatch):
    """With a limit of 1 MB, reading 24 MB leaves less than 8 MB of the file mapped."""
    monkeypatch.setattr(mapped, "RESIDENT_BYTES", 1 << 20)
    lazy = write(rows(200, shape=(3, 200, 200)))
    if not hasattr(mapped.mmap, "MADV_DONTNEED") or not (status := mapped.Path("/proc/self/status")).exists():
        pytest.skip("needs Linux")

    def file_pages() -> int:
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if "RssFile" in line)

    before = file_pages()
    for start in range(0, 200, 10):
        assert np.asarray(lazy[start : start + 10]).any()
    assert file_pages() - before < 8 << 20
