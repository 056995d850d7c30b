"""A site's data on disk, and its copy of the public set."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedchoir import methods
from fedchoir.core.result import versions
from fedchoir.core.settings import Settings
from fedchoir.data.domain import Domain
from fedchoir.data.modalities import folder_modality, reader
from fedchoir.data.public import PublicSet, load_public
from fedchoir.data.samples import Samples
from fedchoir.data.splits import unseen
from fedchoir.data.validation import validation_split
from fedchoir.deploy.config import OWN
from fedchoir.engines.headers import MessageError
from fedchoir.models import build
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded

PUBLIC_OPTIONS = ("seed", "size", "image_size", "aspect", "grey_bits", "normalisation", "strict")
"""What a message may say about the public set, beside its name and digest."""


@dataclass(frozen=True)
class SiteData:
    """A site's data, prepared with the federation's settings: labels are indices of the federation's classes."""

    train: Samples
    tests: Mapping[str, Samples]
    public: PublicSet | None = None
    validation: Samples | None = None


@dataclass(frozen=True)
class LocalSite:
    """The site that ``fedchoir node`` was started for."""

    name: str
    model: str
    data: Path
    work: Path
    public: str | None = None  # its copy of the public set, a path or a name; default: the name in the message
    data_root: Path | None = None
    device: str = "auto"
    precision: str = "fp32"

    @property
    def public_model(self) -> str:
        """The model's name in messages: no paths, no weights."""
        return ModelSpec.parse(self.model).public_name

    @property
    def cache(self) -> Path:
        """Folder for decoded images."""
        return self.work / "decoded"

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData:
        """The site's samples, labelled with indices of the federation's classes, and the public set."""
        domain = self.domain(settings)
        position = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in domain.classes if name not in position]:
            raise UsageError(f"{self.name}: class {unknown[0]!r} is not among the federation's classes")
        table = torch.tensor([position[name] for name in domain.classes])
        train, test = (replace(part, labels=table[part.labels]) for part in (domain.train, domain.test))
        train, validation = validation_split(self.name, train, settings.validation)
        return SiteData(train, {OWN: test}, self.load_public(public, train), validation)

    def domain(self, settings: Settings) -> Domain:
        """Train and test samples, without training samples that are in the test set too."""
        if not self.data.exists():
            raise UsageError(f"--data {self.data}: there is no such folder or file")
        modality = folder_modality({self.name: self.data}, settings)
        options = settings.model_copy(update={"cache": self.cache})
        (domain,) = reader(modality).read_clients({self.name: self.data}, options, None)
        if not domain.train.copies_are_leaks:
            return domain
        return replace(domain, train=domain.train.subset(unseen(domain.train, domain.test)))

    def load_public(self, public: Mapping[str, Any] | None, like: Samples) -> PublicSet | None:
        """The public set that a message describes. The site's operator names its file; a message never does."""
        if public is None or public.get("name") == methods.CONDENSED:  # which the sites make in the run
            return None
        name, known = self.public or public.get("name"), reader(like.modality).PUBLIC
        if self.public is None and name not in known:
            raise MessageError(
                f"refused: the public set is not one of {', '.join(known)}, so this site's operator names its copy "
                "with --public"
            )
        options = {key: value for key, value in public.items() if key in PUBLIC_OPTIONS}
        return load_public(str(name), like=like, root=self.data_root, cache=self.cache, **options)

    def site_info(self, settings: Settings, public_options: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the server learns about this site before a run: sizes and class names, never a sample."""
        domain = self.domain(settings)
        public = self.load_public(public_options, domain.train)
        train, _ = validation_split(self.name, domain.train, settings.validation)
        pick_device(self.device)  # a device or a model that is not possible fails here, before the run
        with seeded(0, "trial"):
            build(self.model, len(domain.classes), domain.train.input_spec)
        self.work.mkdir(parents=True, exist_ok=True)
        return {
            "name": self.name,
            "model": self.public_model,
            "train": len(train),
            "test": len(domain.test),
            "classes": list(domain.classes),
            "public": None if public is None else {"digest": public.digest, "size": len(public)},
            "inputs": asdict(domain.train.input_spec),
            "versions": versions(),
            "free": shutil.disk_usage(self.work).free,
        }
