"""The modalities, and the module that reads each. A new one is a package with a ``reader`` module and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from fedchoir.data.domain import Domain, Progress
from fedchoir.data.options import DataOptions
from fedchoir.data.samples import Samples
from fedchoir.data.series.files import looks_like_series
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo


class Reader(Protocol):
    """What the ``reader`` module of a modality defines."""

    SUFFIXES: tuple[str, ...]
    """Of files that hold one client each, in a user's folder."""
    TYPES: tuple[type, ...]
    """The dataclasses of which its samples consist: processes exchange them field by field."""
    MODELS: tuple[str, ...]
    """Architectures for a user's own data, one per client in turn."""
    HOMOGENEOUS_MODEL: str
    """The architecture where all clients have the same."""
    PUBLIC: Mapping[str, str]
    """Names of public sets, and what they are."""
    PUBLIC_FILES: str
    """The files of a user's own public set, in words; empty: there are none."""
    DEFAULT_PUBLIC: str
    """The public set for a user's own data; empty: the user has to give one."""

    def load_domains(
        self, info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
    ) -> list[Domain]:
        """The domains of a named scenario."""

    def read_clients(self, paths: Mapping[str, Path], options: DataOptions, progress: Progress | None) -> list[Domain]:
        """One domain for each client of a user's folder, aligned with each other."""

    def load_public(self, request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
        """The set's name, its samples, which fit those of a client, and notes."""


READERS: dict[str, str] = {
    "image": "fedchoir.data.image.reader",
    "table": "fedchoir.data.tabular.reader",
    "series": "fedchoir.data.series.reader",
    "text": "fedchoir.data.text.reader",
    "tensor": "fedchoir.data.torch_datasets.reader",
}


def reader(modality: str) -> Reader:
    """The module that reads a modality."""
    return cast(Reader, import_module(READERS[modality]))


def folder_modality(paths: Mapping[str, Path], options: DataOptions) -> str:
    """The one modality of all clients of a user's folder."""
    if options.modality != "auto":
        return options.modality
    if options.text_column:
        return "text"
    kinds = {modality_of(path): client for client, path in paths.items()}
    if len(kinds) > 1:
        (kind, one), (other, two) = sorted(kinds.items())[:2]
        raise UsageError(f"{one} has {kind} samples and {two} has {other} samples; all clients need one kind")
    return next(iter(kinds))


def modality_of(path: Path) -> str:
    """The modality of a client's file or folder, by its suffix and, for arrays, by their shape and values.

    >>> modality_of(Path("hospital.npz"))
    'image'
    """
    if path.is_dir():
        return "image"
    found = [modality for modality in READERS if path.name.lower().endswith(reader(modality).SUFFIXES)]
    if "series" in found and path.is_file():
        return "series" if looks_like_series(path) else "image"
    if found:
        return found[0]
    known = ", ".join(suffix for name in READERS for suffix in reader(name).SUFFIXES)
    raise UsageError(f"{path}: not a folder of images or a file of a known kind ({known})")
