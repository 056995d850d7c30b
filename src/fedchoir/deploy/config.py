"""FEDERATION.toml: what the sites have agreed on, and who they are."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedchoir import methods
from fedchoir.data.options import DataOptions
from fedchoir.deploy.keys import NAME
from fedchoir.experiments.config import Experiment, Plan, one_line
from fedchoir.privacy.eligibility import Secure, check_secure
from fedchoir.utils.errors import UsageError

OWN = "own"  # the column of results: each site is tested on its own data
SIMULATED = {field.name for field in fields(DataOptions)} - {"image_size"}
"""Settings that say how a scenario's images are dealt out."""


class SiteEntry(BaseModel):
    """One site, as the server knows it beforehand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="the site's name; its node is started with --name NAME")
    key: Path | None = Field(None, description="the site's public key, NAME.pub")
    model: str | None = Field(None, description="its architecture; needed only if the run may start without the site")
    revoked: bool = Field(False, description="its key is not accepted any more; the run goes on without it")

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("letters, digits, dots and dashes")
        return value


class FederationFile(BaseModel):
    """A federation: the experiment, the server and the sites. Paths count from the folder of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(description="name of a method (fedchoir list methods)")
    public: str | None = Field(None, description="name of the public set, or a file that every site has")
    rounds: int = Field(10, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, description="every draw is derived from it")
    profile: Literal["fixed", "paper", "official"] = Field("fixed", description="how ambiguities are settled")
    quorum: float = Field(0.5, gt=0, le=1, description="share of the sites that an exchange needs")
    secure: Secure = Field(
        False, description="true: the server sees only means of answers; strict: even if it lies about who answered"
    )
    classes: tuple[str, ...] | None = Field(None, description="class names; default: those that all sites have")
    out: Path = Field(Path("run"), description="folder of the run")
    settings: dict[str, Any] = Field(default_factory=dict, description="options of the method")

    address: str = Field("0.0.0.0:8000", description="where the server listens")
    insecure: bool = Field(False, description="no TLS and no keys: only to rehearse on one machine")
    ca: Path = Field(Path("keys/ca.crt"), description="certificate of the authority")
    certificate: Path = Field(Path("keys/server.crt"), description="certificate of the server")
    key: Path = Field(Path("keys/server.key"), description="private key of the server")
    wait: float = Field(600, gt=0, description="seconds to wait for sites before the first round")
    deadline: float = Field(3600, gt=0, description="seconds that a site has for an answer")
    max_message_mb: float = Field(512, gt=0, description="larger messages are refused unread")
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
        """The experiment with nothing left open."""
        method = methods.get(self.method)
        try:
            params = method.Params(**{**method.profile(self.profile, "federation"), **self.settings})
        except ValidationError as error:
            raise UsageError(one_line(error, method.Params, f" of {self.method}")) from None
        if foreign := sorted(SIMULATED & set(self.settings)):
            raise UsageError(f"{foreign[0]} is not possible in a federation: its sites bring data of their own")
        if method.needs_public and self.public is None:
            raise UsageError(f"public is missing: {self.method} needs a public set that every site has")
        if self.secure:
            check_secure(method, params, len(self.sites))
        experiment = Experiment(
            method=self.method, scenario="federation", public=self.public, rounds=self.rounds, seed=self.seed,
            profile=self.profile, quorum=self.quorum, secure=self.secure, out=self.out, settings=self.settings,
        )  # fmt: skip
        models = tuple(site.model or "?" for site in self.sites)
        public = self.public if method.needs_public else None
        return Plan(
            experiment=experiment, params=params, models=models, rounds=self.rounds, public=public, out=self.out
        )


def read_federation(path: Path) -> FederationFile:
    """The file, its paths made absolute; or one line that says what is wrong."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    try:
        federation = FederationFile(**values)
    except ValidationError as error:
        raise UsageError(f"{path}: {_where(error)}") from None
    home = path.resolve().parent
    sites = tuple(site.model_copy(update={"key": home / site.key if site.key else None}) for site in federation.sites)
    paths = {name: home / getattr(federation, name) for name in ("out", "ca", "certificate", "key")}
    federation = federation.model_copy(update={**paths, "sites": sites})
    if lost := [site.name for site in sites if site.revoked and site.model is None]:
        raise UsageError(f"{path}: site {lost[0]} is revoked: give it the model it had, so that the others can go on")
    if not federation.insecure and (unkeyed := [site.name for site in sites if site.key is None]):
        raise UsageError(f"{path}: site {unkeyed[0]} has no key; fedchoir keys --site {unkeyed[0]} makes one")
    return federation


def _where(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["loc"][:1] == ("sites",) and len(first["loc"]) > 2:
        return f"site {int(first['loc'][1]) + 1}: {first['loc'][2]}: {first['msg']}"
    return one_line(error, FederationFile, "")
