"""The options of a run that choose its data, and in a simulation who takes part, when, and with which model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedchoir.data.image.resize import Aspect
from fedchoir.data.splits import NoiseType
from fedchoir.data.tabular.column import Alignment, Column, Scaling
from fedchoir.utils.input_spec import ImageSize
from fedchoir.utils.options import Options, split_numbers

TestSplit = Literal["held-out", "validation", "whole-folder"]
PartitionKind = Literal["dirichlet", "shards", "classes", "iid", "file"]


class DataOptions(Options):
    """Which samples the clients train on and are tested on, and the protocol of a simulation."""

    clients: int | None = Field(None, ge=1, description="number of clients; default: one per domain, or 10")
    private: tuple[int | float, ...] | None = Field(
        None, description="private samples per domain: counts, or shares below 1; default: the papers'"
    )
    modality: Literal["auto", "image", "table", "series", "text"] = Field(
        "auto", description="kind of the samples in a folder; auto: by the suffix and content of the files"
    )
    tokenizer: Path | None = Field(
        None, description="text: a vocabulary (one word a line) or a tokenizer.json; default: words are hashed"
    )
    vocabulary: int = Field(8192, ge=2, le=1 << 22, description="text: number of ids that words are hashed to")
    max_length: int = Field(128, ge=1, le=8192, description="text: tokens of a text; longer ones are cut")
    text_column: str = Field("", description="text: column with the texts; with it, CSV files are text and not tables")
    image_size: ImageSize = Field(32, description="images are resized to this: a side, or height,width; 8 to 512")
    aspect: Aspect = Field(
        "squash", description="images of another aspect ratio: squash, pad with black, or crop to the centre"
    )
    grey_bits: int = Field(16, ge=8, le=16, description="bits of 16-bit grey images that are used; 12 for 0…4095")
    cache: Path | None = Field(
        None, exclude=True, description="folder for decoded images (--cache); default: only sets over 1 GB, in ~/.cache"
    )
    test_split: TestSplit = Field(
        "held-out",
        description="validation: hold back a fifth of the training samples and test on them, to choose options; "
        "whole-folder: the Office split of the released code, which tests on training images and trains on the first "
        "part of a folder, so without its last classes",
    )
    partition: PartitionKind = Field("dirichlet", description="how a label-skew scenario is split over the clients")
    partition_file: Path | None = Field(
        None, description="JSON with the image indices of every client, for partition=file"
    )
    beta: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="concentration of the Dirichlet split: small is skewed"
    )
    dirichlet_cap: bool = Field(
        False,
        description="Dirichlet split: a client with an equal share of all samples gets no further classes",
    )
    shards_per_client: int = Field(2, ge=1, description="for partition=shards")
    classes_per_client: int = Field(2, ge=1, description="for partition=classes")
    label_noise: float = Field(0.0, ge=0, lt=1, description="share of private labels that are wrong")
    noise_type: NoiseType = Field("symmetric", description="wrong labels: any other class, or the next one (pair)")
    centralized: bool = Field(
        False, description="every client has the private samples of all; with solo this is the upper bound"
    )
    held_out: str | None = Field(
        None, description="a domain whose clients do not take part: all models are tested on it as an unseen domain"
    )
    rotate: bool = Field(
        False,
        description="models move on to other clients, by one client more with every seed: over as many seeds as "
        "clients, every client has every model equally often",
    )
    size_skew: float = Field(
        0.0,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="unequal sizes of the clients that share a domain, or with partition=iid a data set: σ of the "
        "log-normal distribution of sizes (as in FedLab); 0: equal",
    )
    join_late: tuple[str, ...] = Field(
        (), description="clients that join later, NAME:ROUND each: the first round they take part in, counted from 1"
    )

    target: str | None = Field(
        None, description="tables: the column to predict; default: label, target or y, else the last column"
    )
    classes: tuple[str, ...] = Field(
        (), description="tables: the agreed classes of the target; default: those of the training rows"
    )
    columns: tuple[Column, ...] = Field(
        (), description="tables: the agreed columns, each with name, kind, and min and max or categories"
    )
    categorical: tuple[str, ...] = Field((), description="tables: columns of numbers that are codes of categories")
    alignment: Alignment = Field(
        "by-name", description="tables: columns that differ between clients are aligned by name, or refused (strict)"
    )
    scaling: Scaling = Field(
        "own", description="tables: by statistics of the client's own training samples, or by the ranges of columns"
    )
    drop_first: bool = Field(False, description="tables: no feature for the first category of a column")
    missing_indicator: bool = Field(False, description="tables: a further feature for each column: value is missing")
    test_encoder: Literal["client", "domain"] = Field(
        "client",
        description="tables: tests are scaled by the client whose model is tested, or by the domain they come from",
    )

    @field_validator("categorical", "classes", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("image_size", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        value = split_numbers(value)
        sides = value if isinstance(value, tuple | list) else (value,)
        if not all(type(side) is int and 8 <= side <= 512 for side in sides) or len(sides) not in (1, 2):
            raise ValueError("one number, or height and width, each from 8 to 512")
        return sides[0] if len(set(sides)) == 1 else tuple(sides)

    @field_validator("private", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        value = split_numbers(value)
        return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("private")
    @classmethod
    def _counts_or_shares(cls, value: tuple[int | float, ...] | None) -> tuple[int | float, ...] | None:
        possible = value is None or all(0 < v <= 1 if isinstance(v, float) else v >= 1 for v in value)
        if not possible or value == ():
            raise ValueError("one number for all domains or one for each: counts from 1, or shares up to 1.0")
        return value

    @field_validator("join_late", mode="before")
    @classmethod
    def _names_and_rounds(cls, value: Any) -> Any:
        entries = value if isinstance(value, tuple | list) else str(value).split(",")
        pairs = [str(entry).strip().rpartition(":") for entry in entries]
        if not all(name and number.isdecimal() and int(number) >= 2 for name, _, number in pairs):
            raise ValueError("NAME:ROUND with a round from 2, for example svhn:5; several are separated by commas")
        if len({name for name, _, _ in pairs}) < len(pairs):
            raise ValueError("one round for each client")
        return tuple(map("".join, pairs))

    @property
    def late_rounds(self) -> dict[str, int]:
        """Name of each client that joins late → its first round, counted from 1.

        >>> DataOptions(join_late="svhn:5, syn:2").late_rounds
        {'svhn': 5, 'syn': 2}
        """
        return {name: int(number) for name, _, number in (entry.rpartition(":") for entry in self.join_late)}

    @model_validator(mode="after")
    def _fit_together(self) -> DataOptions:
        if self.centralized and self.test_split == "whole-folder":
            raise ValueError(
                "centralized = True is not possible with test_split = 'whole-folder', which tests on private images: "
                "test_split should be held-out or validation"
            )
        if self.partition == "file" and self.partition_file is None:
            raise ValueError("partition = 'file' is not possible without a file: set partition_file to its path")
        return self
