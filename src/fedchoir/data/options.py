"""What a run may choose about its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fedchoir.data.splits import NoiseType
from fedchoir.utils.errors import UsageError

TestSplit = Literal["held-out", "validation", "whole-folder"]
PartitionKind = Literal["dirichlet", "shards", "classes", "iid", "file"]


@dataclass(frozen=True)
class DataOptions:
    """Choices about data; a wrong value raises a UsageError that names the field.

    Attributes:
        image_size: side S of the square images that models see.
        private: private training images per domain, one value for each or one for all: a count, or a fraction (a
            float up to 1.0) of the training images. None: the scenario's default.
        test_split: ``held-out``: test images, of which none is trained on; ``validation``: a fifth of the training
            images is held back and tested on instead, to choose options without looking at the test images;
            ``whole-folder``: domains without a test part of their own are tested on every image, training ones among
            them, as released code does; only to reproduce it.
        clients: None for the scenario's default.
        partition: how label-skew scenarios deal images out to clients.
        beta: of the Dirichlet distribution; small means skewed.
        shards_per_client: for ``partition="shards"``.
        classes_per_client: for ``partition="classes"``.
        partition_file: for ``partition="file"``: JSON with a list of lists of positions, or {client: positions}.
        label_noise: share of every client's training labels that are made wrong.
        noise_type: ``symmetric`` (any other class) or ``pair`` (the next class).
        centralized: every client has the private images of all, as if they were in one place.
    """

    image_size: int = 32
    private: tuple[int | float, ...] | None = None
    test_split: TestSplit = "held-out"
    clients: int | None = None
    partition: PartitionKind = "dirichlet"
    beta: float = 0.5
    shards_per_client: int = 2
    classes_per_client: int = 2
    partition_file: Path | None = None
    label_noise: float = 0.0
    noise_type: NoiseType = "symmetric"
    centralized: bool = False

    def __post_init__(self) -> None:
        if self.private is not None:
            object.__setattr__(self, "private", tuple(self.private))
        self._require("image_size", self.image_size >= 8, "8 or more")
        self._require("clients", self.clients is None or self.clients >= 1, "1 or more")
        self._require("beta", 0 < self.beta < float("inf"), "above 0")
        self._require("shards_per_client", self.shards_per_client >= 1, "1 or more")
        self._require("classes_per_client", self.classes_per_client >= 1, "1 or more")
        self._require("label_noise", 0 <= self.label_noise < 1, "from 0 to below 1")
        for field, allowed in (
            ("test_split", get_args(TestSplit)),
            ("partition", get_args(PartitionKind)),
            ("noise_type", get_args(NoiseType)),
        ):
            self._require(field, getattr(self, field) in allowed, f"one of {', '.join(allowed)}")
        self._require("private", self.private is None or len(self.private) > 0, "one value for each domain")
        for value in self.private or ():
            good = 0 < value <= 1 if isinstance(value, float) else value >= 1
            self._require("private", good, "counts of 1 or more, or fractions (written with a point) up to 1.0")
        leaking = self.centralized and self.test_split == "whole-folder"
        self._require(
            "centralized", not leaking, "false where test_split is 'whole-folder', which tests on private images"
        )
        file_given = self.partition_file is not None
        self._require("partition_file", file_given or self.partition != "file", "a path when partition is 'file'")

    def _require(self, field: str, good: bool, wanted: str) -> None:
        if not good:
            raise UsageError(f"{field}: {getattr(self, field)!r} given; wanted {wanted}")
