"""The options of a run that choose its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedchoir.data.splits import NoiseType
from fedchoir.utils.options import Options, split_numbers

TestSplit = Literal["held-out", "validation", "whole-folder"]
PartitionKind = Literal["dirichlet", "shards", "classes", "iid", "file"]


class DataOptions(Options):
    """Which images the clients train on and are tested on."""

    clients: int | None = Field(None, ge=1, description="number of clients; default: one per domain, or 10")
    private: tuple[int | float, ...] | None = Field(
        None, description="private images per domain: counts, or shares below 1; default: the papers'"
    )
    image_size: int = Field(32, ge=8, le=512, description="images are resized to this height and width")
    test_split: TestSplit = Field(
        "held-out",
        description="validation: hold back a fifth of the training images and test on them, to choose options; "
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
    shards_per_client: int = Field(2, ge=1, description="for partition=shards")
    classes_per_client: int = Field(2, ge=1, description="for partition=classes")
    label_noise: float = Field(0.0, ge=0, lt=1, description="share of private labels that are wrong")
    noise_type: NoiseType = Field("symmetric", description="wrong labels: any other class, or the next one (pair)")
    centralized: bool = Field(
        False, description="every client has the private images of all; with solo this is the upper bound"
    )

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
