"""Tables as a modality of scenarios and public sets: one file or data frame per client, aligned by column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import torch

from fedchoir.data.domain import Domain, Progress, Raw, domain_from
from fedchoir.data.options import DataOptions
from fedchoir.data.own_functions import clients_of
from fedchoir.data.samples import Samples, unlabeled
from fedchoir.data.tabular import heart
from fedchoir.data.tabular.alignment import agree, compare, shown, with_ranges
from fedchoir.data.tabular.cells import store
from fedchoir.data.tabular.column import Alignment, Column, key
from fedchoir.data.tabular.encoder import Encoder, Encoding
from fedchoir.data.tabular.files import SUFFIXES, checked, own_test_file, read_table
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.data.tabular.target import class_names, labels_of, target_name, without
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import is_factory, load_factory
from fedchoir.utils.rng import generator

if TYPE_CHECKING:
    from fedchoir.data.public import PublicRequest
    from fedchoir.data.registry import ScenarioInfo

__all__ = ["SUFFIXES", "load_domains", "load_public", "read_clients", "read_tables"]

TYPES: tuple[type, ...] = (TableSet, Column, Encoding, Encoder)
MODELS = ("logistic", "mlp", "res_mlp", "ft_transformer")
HOMOGENEOUS_MODEL = "mlp"
PUBLIC_FILES = "a .csv or .parquet file"
DEFAULT_PUBLIC = "column-ranges"
PUBLIC: dict[str, str] = {
    DEFAULT_PUBLIC: "rows drawn from the ranges and categories of the columns, alike at every site",
}

Rows: TypeAlias = "pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]"
"""A client's rows, or its training and test rows."""

DRAWN = 1000  # rows of a generated public set, if no size is given
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}


def read_clients(paths: Mapping[str, Path], options: DataOptions, progress: Progress | None = None) -> list[Domain]:
    """All clients of a folder: ``NAME.csv`` or ``NAME.parquet``, with test rows in ``NAME.test.csv`` if it exists."""
    found: dict[str, Rows] = {}
    for name, path in paths.items():
        own_test = own_test_file(path)
        found[name] = read_table(path) if own_test is None else (read_table(path), read_table(own_test))
        if progress is not None:
            progress(len(found), len(paths), name)
    return read_tables(found, options)


def load_domains(
    info: ScenarioInfo, root: Path | None, options: DataOptions, progress: Progress | None
) -> list[Domain]:
    """The data frames that a user's function returns, or the hospitals of the heart disease data."""
    if is_factory(info.name):
        return read_tables({name: _frames(name, given) for name, given in clients_of(info.name).items()}, options)
    agreed = {"target": heart.TARGET, "columns": options.columns or heart.COLUMNS}
    return read_tables({name: heart.hospital(name) for name in info.sources}, options.model_copy(update=agreed))


def _frames(name: str, given: Any) -> Rows:
    """The rows of a client from a user's function, which keeps its own data frames."""
    splits = (given,) if isinstance(given, pd.DataFrame) else given
    places = (name, f"the test rows of {name}")
    found = [checked(frame, where).reset_index(drop=True) for frame, where in zip(splits, places, strict=False)]
    return found[0] if len(found) == 1 else (found[0], found[1])


def read_tables(clients: Mapping[str, Rows], options: DataOptions) -> list[Domain]:
    """The domains of clients whose rows are data frames."""
    rows = {name: _split(given) for name, given in clients.items()}
    training = {name: frames[0] for name, frames in rows.items()}
    target, notes = target_name(training, options.target)
    classes = options.classes or class_names(training, target)
    inputs = {name: without(frame, target) for name, frame in training.items()}
    if options.columns:
        columns = options.columns
        for name, frame in inputs.items():
            notes += _fitting(name, frame, columns, options.alignment)
    else:
        columns, more = agree(inputs, options.categorical, options.alignment)
        notes += more
    encoding = Encoding(options.scaling, options.drop_first, options.missing_indicator)
    domains = []
    for name, frames in rows.items():
        sets = [
            TableSet(store(frame, columns, where), labels_of(frame, target, classes, where), columns, encoding)
            for frame, where in zip(frames, (name, f"the test rows of {name}"), strict=False)
        ]
        domains.append(domain_from(Raw(sets[0], sets[1] if len(sets) > 1 else None, classes), name))
    if not options.columns:
        columns = with_ranges(columns, [domain.train.inputs for domain in domains])
    domains = [_with_encoders(domain, columns, options) for domain in domains]
    return [replace(domains[0], notes=domains[0].notes + notes), *domains[1:]]


def _split(given: Rows) -> tuple[pd.DataFrame, ...]:
    """Training and, where there are some, test rows: as given, or by a column ``split`` of train and test."""
    if isinstance(given, tuple):
        return given
    name = next((name for name in given.columns if key(name) == "split"), None)
    values = None if name is None else given[name].map(lambda cell: _SPLITS.get(key(cell)))
    if values is None or values.isna().any():
        return (given,)
    rest = given.drop(columns=name)
    if not (values == "train").any():
        raise UsageError(f"{name}: no row is for training; wanted train and test")
    return (rest[values == "train"], rest[values == "test"]) if (values == "test").any() else (rest,)


def _with_encoders(domain: Domain, columns: tuple[Column, ...], options: DataOptions) -> Domain:
    """Training rows with an encoder of their own; test rows with the one of the client that is tested, or of their
    domain."""
    assert isinstance(domain.train, TableSet)
    assert isinstance(domain.test, TableSet)
    train = replace(domain.train, columns=columns)
    encoder = train.transform if options.test_encoder == "domain" else None
    return replace(domain, train=train, test=replace(domain.test, columns=columns, encoder=encoder or "client"))


def _fitting(where: str, frame: pd.DataFrame, columns: Sequence[Column], alignment: Alignment) -> tuple[str, ...]:
    """A note about a table whose columns differ from the agreed ones; an error if none fits or they must not differ."""
    have = {key(name): str(name) for name in frame.columns}
    agreed = {key(column.name): column.name for column in columns}
    if not have.keys() & agreed.keys():
        raise UsageError(f"{where}: none of the columns {shown(agreed.values())} is there, only {shown(have.values())}")
    differences = compare(have, agreed)
    if differences and alignment == "strict":
        raise UsageError(f"columns differ from the agreed ones: {where} {differences}")
    return (f"{where} {differences}",) if differences else ()


def load_public(request: PublicRequest, like: Samples | None) -> tuple[str, Samples, tuple[str, ...]]:
    """The rows of a file, or rows drawn from the ranges of the clients' columns (`DEFAULT_PUBLIC`)."""
    assert isinstance(like, TableSet)
    if request.name == DEFAULT_PUBLIC:
        note = "public set: each column is drawn by itself, uniformly from its range"
        if any(column.observed for column in like.columns):
            note += (
                "; the ranges are those of all clients' rows, which only a simulation can see: real sites agree on them"
            )
        return DEFAULT_PUBLIC, draw_rows(like, request.size or DRAWN, request.seed), (note,)
    if is_factory(request.name):
        frame, where = load_factory(request.name, "public")(), f"public set {request.name}"
        if not isinstance(frame, pd.DataFrame):
            raise UsageError(
                f"{where}: a {type(frame).__name__} is returned; wanted a pandas DataFrame, as the clients'"
            )
        return request.name, *_public_rows(checked(frame, where), like, where, where)
    path = Path(request.name).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"public: {request.name!r} is neither {DEFAULT_PUBLIC!r} nor a {' or '.join(SUFFIXES)} file")
    return path.name, *_public_rows(read_table(path), like, f"public set {path.name}", str(path))


def _public_rows(frame: pd.DataFrame, like: TableSet, name: str, where: str) -> tuple[TableSet, tuple[str, ...]]:
    """Unlabeled rows with the columns of the clients', and notes."""
    notes = _fitting(name, frame, like.columns, "by-name")
    rows = store(frame, like.columns, where)
    return replace(like, inputs=rows, labels=unlabeled(len(rows)), encoder="client"), notes


def draw_rows(like: TableSet, size: int, seed: int) -> TableSet:
    """Rows whose columns are drawn one by one, uniformly from their ranges or categories.

    Sites that agreed on the columns draw the same rows.
    """
    rows = torch.full((size, len(like.columns)), float("nan"))
    for i, column in enumerate(like.columns):
        draw = generator(seed, "public table", column.name)
        if column.kind in ("categorical", "boolean"):
            rows[:, i] = torch.randint(len(column.categories) or 2, (size,), generator=draw).float()
        elif column.range is not None:
            low, high = column.range
            rows[:, i] = (low + (high - low) * torch.rand(size, generator=draw, dtype=torch.float64)).float()
    return replace(like, inputs=rows, labels=unlabeled(size), encoder="client")
