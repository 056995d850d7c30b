"""A site with its data on disk: one folder of images or one `.npz`, and its copy of the public set."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedchoir import methods
from fedchoir.core.result import versions
from fedchoir.core.settings import Settings
from fedchoir.data.image.datasets import Domain, domain_from
from fedchoir.data.image.files import Raw, read_folder, read_npz
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet, load_public
from fedchoir.data.splits import unseen
from fedchoir.deploy.client_worker import SiteData
from fedchoir.deploy.config import OWN
from fedchoir.engines.messages import Envelope
from fedchoir.models import build
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded

CPU = torch.device("cpu")


@dataclass(frozen=True)
class LocalSite:
    """What `fedchoir node` is started with."""

    name: str
    model: str
    data: Path
    work: Path
    public: str | None = None  # this site's copy of the public set, if it is not found by the federation's name
    data_root: Path | None = None
    device: torch.device = CPU
    precision: str = "fp32"

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData:
        """The site's images with labels that count in the federation's classes, and the public set."""
        domain = self.domain(settings.image_size)
        position = {name: number for number, name in enumerate(classes)}
        if strange := [name for name in domain.classes if name not in position]:
            raise UsageError(f"{self.name}: class {strange[0]!r} is not among the federation's classes")
        table = torch.tensor([position[name] for name in domain.classes])
        train, test = (replace(part, labels=table[part.labels]) for part in (domain.train, domain.test))
        return SiteData(train, {OWN: test}, self.load_public(public))

    def domain(self, image_size: int) -> Domain:
        """Train and test images; no image of the one is in the other."""
        domain = domain_from(self._raw(image_size), self.name)
        return replace(domain, train=domain.train.subset(unseen(domain.train, domain.test)))

    def load_public(self, told: Mapping[str, Any] | None) -> PublicSet | None:
        if told is None:
            return None
        return load_public(
            self.public or told["name"],
            root=self.data_root,
            seed=int(told["seed"]),
            size=int(told["size"]),
            image_size=int(told["image_size"]),
            normalisation=told["normalisation"],
            strict=bool(told["strict"]),
        )

    def card(self, letter: Envelope) -> Envelope:
        """Who this is, for the server: sizes and class names, and never an image."""
        asked = letter.header
        settings = methods.get(asked["method"]).Params(**asked["settings"])
        domain = self.domain(settings.image_size)
        public = self.load_public(asked["public"])
        with seeded(0, "trial"):
            build(self.model, len(domain.classes), image_size=settings.image_size)
        self.work.mkdir(parents=True, exist_ok=True)
        return Envelope(
            {
                "name": self.name,
                "model": self.model,
                "train": len(domain.train),
                "test": len(domain.test),
                "classes": list(domain.classes),
                "public": None if public is None else {"digest": public.digest, "size": len(public)},
                "versions": versions(),
                "free": shutil.disk_usage(self.work).free,
            }
        )

    def _raw(self, size: int) -> Raw:
        if self.data.is_file():
            return read_npz(self.data, size)
        if not self.data.is_dir():
            raise UsageError(f"--data {self.data}: there is no such folder or .npz file")
        return self._cached_folder(size)

    def _cached_folder(self, size: int) -> Raw:
        """A folder of images, decoded once: the next message finds them as tensors in the work folder."""
        newest = max((p.stat().st_mtime_ns for p in self.data.rglob("*")), default=0)
        count = sum(1 for _ in self.data.rglob("*"))
        key = hashlib.sha256(repr((str(self.data.resolve()), newest, count, size)).encode()).hexdigest()[:16]
        path = self.work / "decoded" / f"{key}.safetensors"
        if path.exists():
            return _raw_from(load_tensors(path), json.loads(path.with_suffix(".json").read_text()))
        raw = read_folder(self.data, size)
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.iterdir():
            old.unlink()
        tensors = {"train_x": raw.train.images, "train_y": raw.train.labels}
        if raw.test is not None:
            tensors |= {"test_x": raw.test.images, "test_y": raw.test.labels}
        path.with_suffix(".json").write_text(json.dumps(list(raw.classes)))
        save_tensors(path.with_suffix(".part"), tensors)
        path.with_suffix(".part").replace(path)
        return raw


def _raw_from(tensors: Mapping[str, torch.Tensor], classes: list[str]) -> Raw:
    test = ImageSet(tensors["test_x"], tensors["test_y"]) if "test_x" in tensors else None
    return Raw(ImageSet(tensors["train_x"], tensors["train_y"]), test, tuple(classes))
