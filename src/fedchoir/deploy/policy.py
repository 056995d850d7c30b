"""What a site allows: ``policy.toml``, the options of ``fedchoir node``, and the federation's file that it agreed to.

A node has one `Policy`. Everything that the server asks for is checked against it, and what it does not allow is
refused with one line.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from fedchoir import methods
from fedchoir.core.eligibility import Secure
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.deploy.agreement import Agreement
from fedchoir.engines.headers import InfoHeader, MessageError, PlanHeader, unpack_spec
from fedchoir.methods.base import Method
from fedchoir.privacy.secure_aggregation.terms import MIN_CLIENTS, SumLimits
from fedchoir.utils.errors import UsageError
from fedchoir.utils.options import Options


class Limit(Options):
    """The values of one setting that a site allows: ``{ min = 1, max = 20 }``, a list of values, or one value."""

    min: float | None = None
    max: float | None = None
    one_of: tuple[Any, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_values(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value
        return {"one_of": tuple(value) if isinstance(value, list | tuple) else (value,)}

    def __str__(self) -> str:
        if self.one_of is not None:
            return " or ".join(map(repr, self.one_of))
        return " and ".join(
            f"{word} {bound:g}" for word, bound in (("at least", self.min), ("at most", self.max)) if bound is not None
        )

    def allows(self, value: Any) -> bool:
        if self.one_of is not None:
            return value in self.one_of
        values = value if isinstance(value, list | tuple) else (value,)  # local_epochs may be one number per site
        return all(
            isinstance(number, int | float)
            and (self.min is None or number >= self.min)
            and (self.max is None or number <= self.max)
            for number in values
        )


class Accepted(NamedTuple):
    """A method and its settings, checked."""

    method: type[Method]
    params: Settings


class Policy(Options):
    """What a site allows. Paths in ``policy.toml`` are relative to its folder."""

    federation: Path | None = Field(
        None, description="the federation's file that the site agreed to: other methods and settings are refused"
    )
    federation_sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="sha256 of that file: a changed file stops the node"
    )
    trust_server: bool = Field(
        False, description="without an agreed file: the server chooses method and settings, within the limits below"
    )
    methods: tuple[str, ...] | None = Field(None, description="methods that are allowed")
    settings: dict[str, Limit] = Field({}, description="settings and the values that are allowed")
    public: str | None = Field(None, description="this site's copy of the public set: a path, or a name")
    public_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="sha256 of the public samples")
    synthetic: bool = Field(
        True, description="whether synthetic samples that are condensed from private ones may leave"
    )
    max_parameters: int | None = Field(None, ge=1, description="largest model, in parameters")
    max_message_mb: float = Field(512, gt=0, description="largest message in either direction, in MiB")
    hours: str | None = Field(None, description="hours of work in local time, as in 22:00-06:00")
    metrics: bool | Literal["auto"] = Field(
        "auto", description="whether losses and accuracies may leave; auto: not under DP and not with secure sums"
    )
    min_sites: int = Field(2, ge=1, description="fewest sites in a federation, and in a secure sum")
    max_share: float = Field(0.8, gt=0, le=1, description="largest share of one site in the mean of a secure sum")
    secure: Secure = Field(False, description="true: payloads leave only in secure sums; strict: only in strict ones")
    max_epsilon: float | None = Field(
        None, gt=0, description="privacy budget over all runs and servers; replies beyond it, or without noise, refused"
    )
    max_runs: Annotated[int, Field(ge=1)] | Literal["auto", "none"] = Field(
        "auto", description="most runs of one agreed file, as a second one may isolate a site; auto: 1 with secure sums"
    )
    peers: Path | None = Field(None, description="folder with the other sites' .pub files, to verify keys of sums")

    @field_validator("hours")
    @classmethod
    def _two_times(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", value):
            raise ValueError("two times, as in 22:00-06:00")
        return value

    @field_validator("methods")
    @classmethod
    def _known_methods(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            try:
                methods.get(name)
            except UsageError:
                raise ValueError(f"methods that exist (fedchoir list methods), and {name!r} does not") from None
        return value

    # -- what the operator wrote -----------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Bytes of the largest message."""
        return int(self.max_message_mb * 2**20)

    @cached_property
    def agreement(self) -> Agreement | None:
        return None if self.federation is None else Agreement.read(self.federation)

    @cached_property
    def federation_digest(self) -> str:
        """sha256 of the agreed file as it was read first; empty without one."""
        return "" if self.federation is None else sha256_of(self.federation)

    @property
    def required_sums(self) -> Secure:
        """The secure sums outside of which no payload leaves."""
        return self.secure or (self.agreement.secure if self.agreement is not None else False)

    @property
    def run_limit(self) -> int | None:
        """Most runs of the agreed file; None: no limit."""
        if self.max_runs == "auto":
            return 1 if self.required_sums else None
        return None if self.max_runs == "none" else self.max_runs

    def check(self) -> None:
        """Raise `UsageError` if nothing is agreed, or if the agreed file is not what this policy allows."""
        if self.federation is None:
            if self.federation_sha256 is not None:
                raise UsageError("federation_sha256 is given without federation: name the agreed file")
            if not self.trust_server:
                raise UsageError(
                    "give --federation FILE, this site's copy of the federation's file, or --policy FILE "
                    "(fedchoir node init writes one); --trust-server does whatever the server asks"
                )
            return
        if self.federation_sha256 not in (None, self.federation_digest):
            raise UsageError(
                f"{self.federation} has changed since it was agreed to (its sha256 is not federation_sha256): read it "
                "again, then write the policy again with fedchoir node init"
            )
        agreement = self.agreement
        assert agreement is not None
        try:
            self._check_limits(agreement.method, agreement.settings, agreement.public)
            method = methods.get(agreement.method, (agreement.public or {}).get("name"))
            self._check_budget(method, method.Params(**agreement.settings))
            self._check_sites(len(agreement.sites))
        except MessageError as error:
            raise UsageError(f"{self.federation}: {str(error).removeprefix('refused: ')}") from None
        if self.secure and (not agreement.secure or (self.secure == "strict" and agreement.secure != "strict")):
            raise UsageError(f"{self.federation}: secure = {agreement.secure!r}, and this site wants {self.secure!r}")

    def describe(self, site: str) -> str:
        """What the site agreed to, in one line."""
        if self.agreement is None:
            return (
                f"{site} TRUSTS ITS SERVER: it carries out any method with any settings that the server names. Give "
                "--federation or --policy to decide that here"
            )
        agreed = self.agreement
        sums = {False: "no secure sums", True: "secure sums", "strict": "strict secure sums"}[agreed.secure]
        return (
            f"{site} has agreed to {self.federation}: {agreed.method}, {agreed.rounds} rounds with "
            f"{', '.join(agreed.sites)}; {sums}; anything else is refused"
        )

    # -- what the server asks for ----------------------------------------------------------------------------------

    def accept(self, request: InfoHeader) -> Accepted:
        """The method and settings to use: those of the agreed file if there is one, else those of the server."""
        name, settings = request.method, request.settings
        if self.agreement is not None:
            self.agreement.check_request(request)
            name, settings = self.agreement.method, dict(self.agreement.settings)
        elif not self.trust_server:
            raise MessageError("refused: this site has agreed to no federation")
        self._check_limits(name, settings, request.public)
        try:
            method = methods.get(name, (request.public or {}).get("name"))
            params = method.Params(**settings)
        except UsageError as error:  # about names and values that the server sent
            raise MessageError(f"refused: {error}") from None
        self._check_budget(method, params)
        paths = [field for field, value in params if isinstance(value, Path)]
        if paths and self.agreement is None:
            raise MessageError(f"refused: {paths[0]} names a file, and only this site's operator does that")
        return Accepted(method, params)

    def accept_spec(self, plan: PlanHeader) -> FederationSpec:
        """The federation that the server describes."""
        spec = unpack_spec(plan.task)
        if self.agreement is not None:
            self.agreement.check_spec(spec)
        self._check_sites(len(spec.clients))
        return spec

    def check_hours(self, now: datetime.time) -> None:
        if self.hours is None:
            return
        start, end = (datetime.time.fromisoformat(text) for text in self.hours.split("-"))
        inside = start <= now < end if start < end else now >= start or now < end
        if not inside:
            raise MessageError(f"refused: this site works from {start:%H:%M} to {end:%H:%M}")

    def check_public(self, here: str | None, wanted: object = None) -> None:
        """Digests of the site's public set and of the federation's; None stands for none."""
        if here is not None and self.public_sha256 not in (None, here):
            raise MessageError("refused: the public set at this site is not the one of its policy")
        if wanted is not None and here != wanted:
            raise MessageError("refused: the public set here is not the federation's: its digest differs")

    def check_size(self, parameters: int) -> None:
        if self.max_parameters is not None and parameters > self.max_parameters:
            raise MessageError(
                f"refused: the model has {parameters} parameters, and this site allows {self.max_parameters}"
            )

    def check_exchange(self, masking: Mapping[str, Any] | None) -> None:
        """Refuse a payload outside the secure sum that this site requires."""
        wanted = self.required_sums
        if wanted and (masking is None or (wanted == "strict" and masking.get("strict") is not True)):
            kind = "strict secure" if wanted == "strict" else "secure"
            raise MessageError(f"refused: this site requires {kind} aggregation, and the server asks without it")

    @property
    def sum_limits(self) -> SumLimits:
        """What this site requires of every secure sum."""
        return SumLimits(max(self.min_sites, MIN_CLIENTS), self.max_share)

    def metrics_leave(self, params: Settings, secure: bool, noise: float = 0.0) -> bool:
        """Whether losses and accuracies may leave. ``secure``: this run has secure sums; ``noise``: of its payloads."""
        if self.metrics != "auto":
            return self.metrics
        return not (params.dp_noise or noise or secure or self.required_sums)

    def _check_limits(self, method: str, settings: Mapping[str, Any], public: Mapping[str, Any] | None) -> None:
        if self.methods is not None and method not in self.methods:
            raise MessageError(f"refused: method {method!r}; this site allows {', '.join(self.methods)}")
        known = methods.registry().get(method)
        known = known and methods.with_public(known, (public or {}).get("name"))
        if not self.synthetic and known is not None and known.synthetic_samples:
            raise MessageError(
                f"refused: {method} sends synthetic samples that are condensed from private ones, which this site's "
                "policy does not allow (synthetic = false)"
            )
        for name, limit in self.settings.items():
            if not limit.allows(settings.get(name)):
                raise MessageError(f"refused: {name} = {settings.get(name)!r}; this site allows {limit}")

    def _check_budget(self, method: type[Method], params: Settings) -> None:
        if self.max_epsilon is not None and not params.dp_noise and not method.payload_noise(params):
            raise MessageError("refused: dp_noise = 0; this site has a privacy budget, which counts noisy steps only")

    def _check_sites(self, count: int) -> None:
        if count < self.min_sites:
            raise MessageError(f"refused: {count} sites; this site takes part with at least {self.min_sites}")


def sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
