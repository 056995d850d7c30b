"""A site's data on disk: a folder of images or an ``.npz`` file, and its copy of the public set."""

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
from fedchoir.deploy.config import OWN
from fedchoir.models import build
from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_path, atomic_write_json
from fedchoir.utils.rng import seeded


@dataclass(frozen=True)
class SiteData:
    """A site's data, prepared with the federation's settings: labels are indices of the federation's classes."""

    train: ImageSet
    tests: Mapping[str, ImageSet]
    public: PublicSet | None = None


@dataclass(frozen=True)
class LocalSite:
    """The site that ``fedchoir node`` was started for."""

    name: str
    model: str
    data: Path
    work: Path
    public: str | None = None  # its copy of the public set; default: the name that the server gives
    data_root: Path | None = None
    device: str = "auto"
    precision: str = "fp32"

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData:
        """The site's images, labelled with indices of the federation's classes, and the public set."""
        domain = self.domain(settings.image_size)
        position = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in domain.classes if name not in position]:
            raise UsageError(f"{self.name}: class {unknown[0]!r} is not among the federation's classes")
        table = torch.tensor([position[name] for name in domain.classes])
        train, test = (replace(part, labels=table[part.labels]) for part in (domain.train, domain.test))
        return SiteData(train, {OWN: test}, self.load_public(public))

    def domain(self, image_size: int) -> Domain:
        """Train and test images, without training images that are in the test set too."""
        domain = domain_from(self._raw(image_size), self.name)
        return replace(domain, train=domain.train.subset(unseen(domain.train, domain.test)))

    def load_public(self, public: Mapping[str, Any] | None) -> PublicSet | None:
        """The public set that the server's message describes."""
        if public is None:
            return None
        options = {key: value for key, value in public.items() if key != "digest"}
        return load_public(**{**options, "name": self.public or public["name"], "root": self.data_root})

    def site_info(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the server learns about this site before a run: sizes and class names, never an image."""
        settings = methods.get(request["method"]).Params(**request["settings"])
        domain = self.domain(settings.image_size)
        public = self.load_public(request["public"])
        pick_device(self.device)  # a device or a model that is not possible fails here, before the run
        with seeded(0, "trial"):
            build(self.model, len(domain.classes), image_size=settings.image_size)
        self.work.mkdir(parents=True, exist_ok=True)
        return {
            "name": self.name,
            "model": self.model,
            "train": len(domain.train),
            "test": len(domain.test),
            "classes": list(domain.classes),
            "public": None if public is None else {"digest": public.digest, "size": len(public)},
            "versions": versions(),
            "free": shutil.disk_usage(self.work).free,
        }

    def _raw(self, size: int) -> Raw:
        """The images of an .npz file or a folder. A folder is decoded once, into a cache in the work folder."""
        if self.data.is_file():
            return read_npz(self.data, size)
        if not self.data.is_dir():
            raise UsageError(f"--data {self.data}: there is no such folder or .npz file")
        times = [path.stat().st_mtime_ns for path in self.data.rglob("*")]
        state = (str(self.data.resolve()), max(times, default=0), len(times), size)
        cache = self.work / "decoded" / f"{hashlib.sha256(repr(state).encode()).hexdigest()[:16]}.safetensors"
        classes = cache.with_suffix(".json")
        if cache.exists():
            found = load_tensors(cache)
            test = ImageSet(found["test_x"], found["test_y"]) if "test_x" in found else None
            return Raw(ImageSet(found["train_x"], found["train_y"]), test, tuple(json.loads(classes.read_text())))
        raw = read_folder(self.data, size)
        shutil.rmtree(cache.parent, ignore_errors=True)
        tensors = {"train_x": raw.train.images, "train_y": raw.train.labels}
        if raw.test is not None:
            tensors |= {"test_x": raw.test.images, "test_y": raw.test.labels}
        atomic_write_json(classes, list(raw.classes))
        with atomic_path(cache) as part:
            save_tensors(part, tensors)
        return raw
