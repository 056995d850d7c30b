"""A site's secrets on disk."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from fedchoir.utils.io import atomic_write


class FolderStore(MutableMapping[str, str]):
    """Strings in files that only their owner can read, written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, text: str) -> None:
        atomic_write(self._folder / name, text, private=True)

    def __delitem__(self, name: str) -> None:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.glob("*") if path.suffix != ".part")

    def __len__(self) -> int:
        return sum(1 for _ in self)
