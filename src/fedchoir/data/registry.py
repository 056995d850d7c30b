"""The scenarios by name, with the settings of the papers that use them."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedchoir.data.image import embedded
from fedchoir.data.image.files import subfolders
from fedchoir.data.modalities import READERS, folder_modality, reader
from fedchoir.data.options import DataOptions
from fedchoir.data.own_functions import are_tables, clients_of
from fedchoir.data.series import har
from fedchoir.data.tabular import heart
from fedchoir.data.text import amazon_reviews
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import is_factory

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
        private: default private samples per domain (count, or fraction of the training samples); None: all.
        models: the papers' architecture of each client, repeated if there are more clients.
        homogeneous_model: the papers' architecture where all clients have one.
        public: default public set.
        defaults: the papers' other settings, by option name.
        top_k: for top-k accuracy.
        modality: of its samples; a name of `fedchoir.data.modalities.READERS`.
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
    modality: str = "image"


_FEDCT = {
    "clients": 10, "rounds": 100, "local_epochs": 10, "local_batch": 64, "optimizer": "sgd", "local_lr": 0.01,
    "local_weight_decay": 1e-5, "partition": "dirichlet", "beta": 0.5, "public_size": 5000,
}  # fmt: skip
_SMALL = {  # minutes on two cores
    "rounds": 10, "local_epochs": 2, "local_batch": 32, "public_batch": 128, "public_size": 1000,
    "lr_schedule": "constant",
}  # fmt: skip
_HEART = {  # seconds on two cores
    "rounds": 15, "local_epochs": 2, "local_batch": 16, "public_batch": 64, "public_size": 500,
    "lr_schedule": "constant", "drop_first": True,
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
    ScenarioInfo(
        name="heart",
        title="Heart disease: patients of four hospitals",
        domains=tuple(heart.HOSPITALS),
        sources=tuple(heart.HOSPITALS),
        models=("logistic", "mlp", "res_mlp", "ft_transformer"),
        homogeneous_model="mlp",
        public="column-ranges",
        private=None,
        source="embedded: UCI Heart Disease (Janosi, Steinbrunn, Pfisterer and Detrano, 1988), CC BY 4.0",
        defaults=_HEART,
        modality="table",
    ),
    ScenarioInfo(
        name="har",
        title="UCI HAR: activities of 25 people with a smartphone, in groups of five",
        domains=tuple(f"people-{first}-{first + 4}" for first in range(1, 26, 5)),
        sources=tuple(f"har/{first}-{first + 4}" for first in range(1, 26, 5)),
        models=("cnn1d", "gru", "transformer", "cnn1d@16", "gru@24"),
        homogeneous_model="cnn1d",
        public="har-people",
        private=None,
        source=har.GET,
        defaults=_SMALL,
        modality="series",
    ),
    ScenarioInfo(
        name="har-people",
        title="UCI HAR: activities of 25 people with a smartphone, each a client",
        domains=tuple(f"person-{person}" for person in range(1, 26)),
        sources=tuple(f"har/{person}-{person}" for person in range(1, 26)),
        models=("cnn1d", "gru", "transformer", "cnn1d@16", "gru@24"),
        homogeneous_model="cnn1d",
        public="har-people",
        private=None,
        source=har.GET,
        defaults=_SMALL,
        modality="series",
    ),
    ScenarioInfo(
        name="amazon-reviews",
        title="Amazon reviews: books, DVDs, electronics, kitchen; positive or negative",
        domains=amazon_reviews.DOMAINS,
        sources=tuple(f"amazon-reviews/{domain}" for domain in amazon_reviews.DOMAINS),
        models=("bag_of_embeddings", "textcnn", "bigru", "transformer"),
        homogeneous_model="textcnn",
        public="amazon-reviews",
        private=None,
        source=amazon_reviews.GET,
        defaults=_SMALL,
        modality="text",
    ),
)

SCENARIOS: dict[str, ScenarioInfo] = {known.name: known for known in _KNOWN}


def info(name: str, options: DataOptions | None = None) -> ScenarioInfo:
    """The description of a scenario by its name, of a user's folder (one sub-folder or file per client), or of a
    function that returns torch Datasets or data frames (``FILE.py:FUNCTION``).

    >>> info("office31").top_k
    5
    """
    if name in SCENARIOS:
        return SCENARIOS[name]
    folder = Path(name).expanduser()
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for names that are too long
        paths = client_paths(folder)
        modality = folder_modality(paths, options or DataOptions())
        return _own(str(folder), folder.name, tuple(paths), (), modality)
    if is_factory(name):
        clients = clients_of(name)
        return _own(name, name, tuple(clients), tuple(clients), "table" if are_tables(clients) else "tensor")
    raise UsageError(f"scenario: {name!r} is neither one of {', '.join(SCENARIOS)} nor a folder nor FILE.py:FUNCTION")


def _own(name: str, short: str, clients: tuple[str, ...], sources: tuple[str, ...], modality: str) -> ScenarioInfo:
    """A scenario of a user's own data."""
    kind = reader(modality)
    return ScenarioInfo(
        name=name,
        title=f"{len(clients)} clients from {short}",
        domains=clients,
        sources=sources,
        models=kind.MODELS,
        homogeneous_model=kind.HOMOGENEOUS_MODEL,
        public=kind.DEFAULT_PUBLIC,
        private=None,
        source=f"your own: {name}",
        defaults={**_FCCL, "local_batch": 64, "public_batch": 256},
        modality=modality,
    )


def client_paths(folder: Path) -> dict[str, Path]:
    """Client name → its sub-folder or file, sorted by name."""
    suffixes = tuple(suffix for modality in READERS for suffix in reader(modality).SUFFIXES)
    files = [
        file
        for file in folder.iterdir()
        if file.name.lower().endswith(suffixes) and not file.name.startswith(".") and ".test." not in file.name
    ]  # a.test.csv holds test samples of a.csv
    found: dict[str, Path] = {}
    for path in sorted(files + subfolders(folder), key=lambda p: p.name):
        name = path.name.split(".")[0] if path.is_file() else path.name
        if name in found:
            raise UsageError(f"{folder}: client {name!r} occurs twice, as {found[name].name} and {path.name}")
        found[name] = path
    if not found:
        raise UsageError(
            f"{folder}: no clients; wanted one sub-folder (of class folders) or one {' or '.join(suffixes)} per client"
        )
    return found
