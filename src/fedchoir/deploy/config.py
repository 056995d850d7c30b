"""FEDERATION.toml: what the sites have agreed on, and who takes part."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedchoir import methods
from fedchoir.core.eligibility import Secure, check_secure
from fedchoir.core.metrics import MetricName
from fedchoir.data.options import DataOptions
from fedchoir.deploy.keys import NAME
from fedchoir.experiments.config import Experiment, Plan, make_params
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import one_line

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AGREED = {  # data options that are the same at all sites
    "modality", "image_size", "aspect", "grey_bits", "target", "columns", "categorical", "alignment", "scaling",
    "drop_first", "missing_indicator", "text_column", "tokenizer", "vocabulary", "max_length",
}  # fmt: skip
OWN = "own"  # name of the only test set in the results: each site tests on its own data


class SiteEntry(BaseModel):
    """One site, as the server's file describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME}$", description="the site's name; its node is started with --name NAME")
    key: Path | None = Field(None, description="the site's public key, NAME.pub")
    model: str | None = Field(
        None, description="its architecture; needed if the run may start without the site, or if weights are averaged"
    )
    max_train: int | None = Field(
        None, ge=2, description="most training samples that it may state; default: that of all sites"
    )
    revoked: bool = Field(False, description="its key is no longer accepted; the run continues without it")

    @property
    def public_model(self) -> str | None:
        """The architecture as messages name it: no paths, no weights."""
        return None if self.model is None else ModelSpec.parse(self.model).public_name


class FederationFile(BaseModel):
    """A federation: the experiment, the server and the sites. Paths are relative to the folder of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(description="name of a method (fedchoir list methods)")
    public: str | None = Field(None, description="name of the public set, a file that every site has, or condensed")
    rounds: int = Field(10, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, description="all random draws are derived from it")
    profile: Literal["fixed", "paper", "official", "official-plus"] = Field(
        "fixed", description="how ambiguities are settled"
    )
    metric: MetricName = Field("accuracy", description="headline of tables and report, and what chooses the best round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of the sites that an exchange needs")
    secure: Secure = Field(
        False, description="true: the server sees only means of payloads; strict: even if it lies about who replied"
    )
    compress: str | None = Field(None, description="compression of payloads, such as int8+zstd; default: none")
    classes: tuple[str, ...] | None = Field(None, description="class names; default: those of the sites")
    out: Path = Field(Path("run"), description="folder of the run")
    settings: dict[str, Any] = Field(default_factory=dict, description="options of the method")

    address: str = Field("0.0.0.0:8000", description="address and port of the server")
    insecure: bool = Field(False, description="no TLS and no keys: only for tests on one machine")
    ca: Path = Field(Path("keys/ca.crt"), description="certificate of the authority")
    certificate: Path = Field(Path("keys/server.crt"), description="certificate of the server")
    key: Path = Field(Path("keys/server.key"), description="private key of the server")
    wait: float = Field(600, gt=0, description="seconds to wait for sites before the first round")
    deadline: float = Field(3600, gt=0, description="seconds that a site has for a reply")
    max_message_mb: float = Field(512, gt=0, description="larger messages are refused unread")
    max_train: int = Field(
        10_000_000, ge=2, description="most training samples that a site may state: they are its weight in some methods"
    )
    sites: tuple[SiteEntry, ...] = Field(description="who takes part")

    @field_validator("sites")
    @classmethod
    def _distinct(cls, value: tuple[SiteEntry, ...]) -> tuple[SiteEntry, ...]:
        if len(value) < 2 or len({site.name for site in value}) < len(value):
            raise ValueError("two or more sites with different names")
        return value

    @property
    def limit(self) -> int:
        return int(self.max_message_mb * 2**20)

    def plan(self) -> Plan:
        """The experiment with nothing left open, the same for the server and for a site that agreed to the file.

        Methods for different architectures average weights if all are alike. A site cannot know that of models that
        the file does not name: then ``average = "auto"`` means never.
        """
        method = methods.get(self.method, self.public)
        agreed = {"classes": self.classes} if self.classes else {}  # a site may have samples of one class alone
        params = make_params(method, None, self.profile, {**self.settings, **agreed})
        if method.heterogeneous and params.average == "auto" and any(site.model is None for site in self.sites):
            params = params.model_copy(update={"average": "never"})
        if simulation_only := sorted((set(DataOptions.model_fields) - AGREED) & set(self.settings)):
            first = simulation_only[0]
            why = "the file itself has that field" if first == "classes" else "its sites have their own data"
            raise UsageError(f"settings: {first} is not possible in a federation: {why}")
        if method.needs_public and self.public is None:
            raise UsageError(f"public is missing: {self.method} needs a public set that every site has")
        if self.secure:
            check_secure(method, params, len(self.sites), self.compress or "")
        experiment = Experiment(
            method=self.method, scenario="federation", public=self.public, rounds=self.rounds, seed=self.seed,
            profile=self.profile, metric=self.metric, quorum=self.quorum, secure=self.secure, out=self.out,
            compress=self.compress, settings=self.settings,
        )  # fmt: skip
        return Plan(
            experiment=experiment,
            params=params,
            models=tuple(site.model or "?" for site in self.sites),
            rounds=self.rounds,
            public=self.public if method.needs_public else None,
            out=self.out,
        )


def read_federation(path: Path) -> FederationFile:
    """Read the file and make its paths absolute; a `UsageError` names what is wrong."""
    try:
        federation = FederationFile(**read_toml(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {_describe(error)}") from None
    folder = path.resolve().parent
    sites = tuple(site.model_copy(update=_resolved(site, folder)) for site in federation.sites)
    paths = {name: folder / getattr(federation, name) for name in ("out", "ca", "certificate", "key")}
    host = federation.address.rpartition(":")[0].strip("[]")
    if federation.insecure and host not in LOOPBACK:
        raise UsageError(
            f"{path}: insecure = true with address = {federation.address!r} is not possible: without TLS and keys the "
            "address should be 127.0.0.1:PORT"
        )
    for site in sites:
        if site.revoked and site.model is None:
            raise UsageError(f"{path}: site {site.name} is revoked: give the model it had, so that others can continue")
        if not federation.insecure and site.key is None:
            raise UsageError(f"{path}: site {site.name} has no key; fedchoir keys --site {site.name} creates one")
    return federation.model_copy(update={**paths, "sites": sites})


def _resolved(site: SiteEntry, folder: Path) -> dict[str, Any]:
    """The site's files as paths from the folder of the federation's file."""
    model = None if site.model is None else str(ModelSpec.parse(site.model).relative_to(folder))
    return {"key": folder / site.key if site.key else None, "model": model}


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["loc"][:1] == ("sites",) and len(first["loc"]) > 2:
        return f"site {int(first['loc'][1]) + 1}: {first['loc'][2]}: {first['msg']}"
    return one_line(error, FederationFile)
