"""Series as a modality of scenarios and public sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedchoir.data.domain import Domain, Progress, domain_from
from fedchoir.data.options import DataOptions
from fedchoir.data.samples import Samples, unlabeled
from fedchoir.data.series.files import read_public_series, read_series
from fedchoir.data.series.generate import generate_public
from fedchoir.data.series.har import load_group, public_windows, read_har
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo

SUFFIXES = (".npz",)
TYPES: tuple[type, ...] = (SeriesSet,)
MODELS = ("cnn1d", "gru", "transformer")
HOMOGENEOUS_MODEL = "cnn1d"
PUBLIC_FILES = "an .npz file of series"
DEFAULT_PUBLIC = "noise"
PUBLIC: dict[str, str] = {
    "noise": "band-limited noise, generated alike at every site",
    "har-people": "UCI HAR's people 26 to 30, without labels",
}


def load_domains(
    info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
) -> list[Domain]:
    """HAR's people in the groups that ``info.sources`` names, such as ``har/1-5``."""
    windows = read_har(root)
    domains = []
    for name, source in zip(info.domains, info.sources, strict=True):
        first, last = map(int, source.removeprefix("har/").split("-"))
        domains.append(load_group(windows, name, range(first, last + 1)))
    return [replace(domains[0], notes=windows.notes), *domains[1:]]


def read_clients(paths: Mapping[str, Path], options: DataOptions, progress: Progress | None) -> list[Domain]:
    """One domain for each `.npz` file."""
    domains = []
    for count, (name, path) in enumerate(paths.items(), start=1):
        domains.append(domain_from(read_series(path), name))
        if progress is not None:
            progress(count, len(paths), name)
    return domains


def load_public(request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
    """A named set or a file; the series must have the channels and length of the clients' own."""
    assert like is not None
    shape = tuple(like.inputs.shape[1:])
    if request.name == "noise":
        channels, length = shape
        return request.name, generate_public(channels, length, request.size or len(like), request.seed), ()
    if request.name == "har-people":
        samples, notes = public_windows(windows := read_har(request.root)), windows.notes
    else:
        samples, notes = _own(request.name), ()
    if tuple(samples.inputs.shape[1:]) != shape:
        found, wanted = ("×".join(map(str, s)) for s in (samples.inputs.shape[1:], shape))
        raise UsageError(f"public: {request.name} has series of {found} (channels×time), but the clients' are {wanted}")
    return request.name, samples, notes


def _own(name: str) -> SeriesSet:
    path = Path(name).expanduser()
    if path.suffix != ".npz" or not path.is_file():
        raise UsageError(f"public: {name!r} is neither one of {', '.join(PUBLIC)} nor an .npz file of series")
    series = read_public_series(path)
    return SeriesSet(series, unlabeled(len(series)), scaling="client")
