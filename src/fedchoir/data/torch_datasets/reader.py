"""Scenarios and public sets that a user's own function returns as torch Datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedchoir.data.domain import Domain, Progress, domain_from
from fedchoir.data.options import DataOptions
from fedchoir.data.own_functions import clients_of
from fedchoir.data.samples import Samples
from fedchoir.data.torch_datasets.convert import public_from, raw_from
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import is_factory, load_factory

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo

SUFFIXES: tuple[str, ...] = ()
"""A folder has no such files: a scenario names a function."""
TYPES: tuple[type, ...] = (TensorSet,)
MODELS = ("mlp",)
HOMOGENEOUS_MODEL = "mlp"
DEFAULT_PUBLIC = ""
PUBLIC: dict[str, str] = {}
PUBLIC_FILES = ""


def load_domains(
    info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
) -> list[Domain]:
    """One domain for each client that the function returns."""
    domains = []
    datasets = clients_of(info.name)
    for count, (name, data) in enumerate(datasets.items(), start=1):
        domains.append(read_client(name, data, options))
        if progress is not None:
            progress(count, len(datasets), name)
    return domains


def read_client(name: str, data: Any, options: DataOptions) -> Domain:
    """The samples of one client from its Dataset, or its (training, test) pair."""
    train, test = data if isinstance(data, tuple | list) and len(data) == 2 else (data, None)
    return domain_from(raw_from(name, train, test, options), name)


def read_clients(paths: Mapping[str, Path], options: DataOptions, progress: Progress | None) -> list[Domain]:
    raise UsageError("modality = 'tensor' is for a scenario FILE.py:FUNCTION that returns torch Datasets")


def load_public(request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
    """The Dataset that a function returns. Labels are ignored."""
    if not is_factory(request.name):
        raise UsageError(
            f"public: {request.name!r} should be FILE.py:FUNCTION, a function that returns a torch Dataset"
        )
    data = load_factory(request.name, "public")()
    samples = public_from("public set", data, like, DataOptions(image_size=request.image_size, aspect=request.aspect))
    if like is not None and samples.input_spec != like.input_spec:
        raise UsageError(f"public: {request.name} has {samples.input_spec}, but the clients have {like.input_spec}")
    return request.name, samples, ()
