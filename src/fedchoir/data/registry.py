"""The scenarios by name, with the settings of the papers that use them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedchoir.data.image import embedded
from fedchoir.data.image.files import subfolders
from fedchoir.utils.errors import UsageError

Kind = Literal["domain-shift", "label-skew"]
_FCCL: dict[str, Any] = {"rounds": 40, "local_epochs": 20, "public_size": 5000}


@dataclass(frozen=True)
class ScenarioInfo:
    """The description of a scenario, known before any data is read.

    Attributes:
        name: as given on the command line.
        title: for tables and reports.
        kind: ``domain-shift`` (one client per domain) or ``label-skew`` (one data set partitioned over clients).
        domains: names of the domains, and under domain shift of the test sets.
        sources: the data sets behind the domains, names for `fedchoir.data.image.datasets.load_domain`.
        source: where to get the data.
        private: default private images per domain (count, or fraction of the training images); None: all.
        models: the papers' architecture of each client, repeated if there are more clients.
        homogeneous_model: the papers' architecture where all clients have one.
        public: default public set.
        defaults: the papers' other settings, by option name.
        top_k: for top-k accuracy.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    sources: tuple[str, ...]
    source: str
    private: tuple[int | float, ...] | None
    kind: Kind = "domain-shift"
    models: tuple[str, ...] = ("resnet10", "resnet12", "efficientnet_b0", "mobilenet_v2")
    homogeneous_model: str = "resnet12"
    public: str = "cifar100"
    defaults: dict[str, Any] = field(default_factory=lambda: dict(_FCCL))
    top_k: int = 1


_FEDCT = {
    "clients": 10, "rounds": 100, "local_epochs": 10, "local_batch": 64, "optimizer": "sgd", "local_lr": 0.01,
    "local_weight_decay": 1e-5, "partition": "dirichlet", "beta": 0.5, "public_size": 5000,
}  # fmt: skip
_LITE = {  # chosen on held-back training images: minutes on two cores, and FCCL+ is clearly better than SOLO
    "rounds": 8, "local_epochs": 4, "local_batch": 32, "public_batch": 64, "public_size": 1000,
    "lr_schedule": "constant",
}  # fmt: skip


def _label_skew(name: str, title: str, source: str) -> ScenarioInfo:
    return ScenarioInfo(
        name=name,
        title=f"{title}, partitioned over clients",
        kind="label-skew",
        domains=("global",),
        sources=(name.replace("-", "_"),),
        models=("resnet18",),
        homogeneous_model="resnet18",
        public="tiny-imagenet" if name.startswith("cifar") else "cifar100",
        private=None,
        source=source,
        defaults=_FEDCT,
    )


_KNOWN = (
    ScenarioInfo(
        name="digits-lite",
        title="Handwritten, printed, coloured and blended digits, generated locally",
        domains=embedded.DOMAINS,
        sources=tuple(f"digits-lite/{domain}" for domain in embedded.DOMAINS),
        models=("resnet10@16", "simple_cnn@16", "vgg9@8", "resnet12@8"),
        homogeneous_model="resnet12@8",
        public="photos",
        private=embedded.PRIVATE,
        source="embedded: nothing to download",
        defaults=_LITE,
    ),
    ScenarioInfo(
        name="digits",
        title="Digits: MNIST, USPS, SVHN, SYN",
        domains=("mnist", "usps", "svhn", "syn"),
        sources=("mnist", "usps", "svhn", "syn"),
        private=(150, 80, 5000, 1800),
        source="fedchoir data fetch mnist (usps, svhn); SYN: Ganin and Lempitsky's synthetic digits",
    ),
    ScenarioInfo(
        name="office-caltech",
        title="Office-Caltech10: Amazon, Caltech, DSLR, Webcam",
        domains=("amazon", "caltech", "dslr", "webcam"),
        sources=tuple(f"office-caltech/{d}" for d in ("amazon", "caltech", "dslr", "webcam")),
        models=("googlenet", "resnet12", "resnet10", "resnet12"),
        private=(0.48, 0.48, 0.48, 0.48),
        source="the authors' page (Gong et al., 2012): unpack as office_caltech_10/<domain>/<class>/",
    ),
    ScenarioInfo(
        name="office31",
        title="Office-31: Amazon, DSLR, Webcam",
        domains=("amazon", "dslr", "webcam"),
        sources=tuple(f"office31/{d}" for d in ("amazon", "dslr", "webcam")),
        models=("resnet10", "resnet12", "resnet10"),
        private=(0.48, 0.48, 0.48),
        source="the authors' page (Saenko et al., 2010): unpack as office31/<domain>/images/<class>/",
        top_k=5,
    ),
    ScenarioInfo(
        name="office-home",
        title="Office-Home: Art, Clipart, Product, Real World",
        domains=("Art", "Clipart", "Product", "RealWorld"),
        sources=tuple(f"office-home/{d}" for d in ("Art", "Clipart", "Product", "RealWorld")),
        models=("resnet18", "resnet34", "googlenet", "resnet12"),
        private=(1400, 2000, 2500, 2000),
        source="hemanthdv.org/officeHomeDataset.html: unpack as OfficeHome/<domain>/<class>/",
        top_k=5,
    ),
    _label_skew("cifar10", "CIFAR-10", "fedchoir data fetch cifar10"),
    _label_skew("cifar100", "CIFAR-100", "fedchoir data fetch cifar100"),
    _label_skew(
        "tiny-imagenet", "Tiny-ImageNet", "cs231n.stanford.edu/tiny-imagenet-200.zip: unpack as tiny-imagenet-200/"
    ),
    _label_skew(
        "vireofood172", "VireoFood-172", "on request from the authors (Chen and Ngo, 2016): unpack as vireofood172/"
    ),
)

SCENARIOS: dict[str, ScenarioInfo] = {known.name: known for known in _KNOWN}


def info(name: str) -> ScenarioInfo:
    """The description of a scenario by its name, or of a user's folder (one sub-folder or `.npz` per client).

    >>> info("office31").top_k
    5
    """
    if name in SCENARIOS:
        return SCENARIOS[name]
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"scenario: {name!r} is neither one of {', '.join(SCENARIOS)} nor a folder")
    domains = tuple(client_paths(folder))
    return ScenarioInfo(
        name=str(folder),
        title=f"{len(domains)} clients from {folder.name}",
        domains=domains,
        sources=(),
        public="photos",
        private=None,
        source=f"the folder {folder}",
        defaults={**_FCCL, "local_batch": 64, "public_batch": 256},
    )


def client_paths(folder: Path) -> dict[str, Path]:
    """Client name → its sub-folder or `.npz` file, sorted by name."""
    files = [file for file in folder.glob("*.npz") if not file.name.startswith(".")]
    found: dict[str, Path] = {}
    for path in sorted(files + subfolders(folder), key=lambda p: p.name):
        name = path.stem if path.suffix == ".npz" and path.is_file() else path.name
        if name in found:
            raise UsageError(f"{folder}: client {name!r} occurs twice, as {found[name].name} and {path.name}")
        found[name] = path
    if not found:
        raise UsageError(f"{folder}: no clients; wanted one sub-folder (of class folders) or one .npz per client")
    return found
