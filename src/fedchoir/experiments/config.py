"""One validated `Experiment`: TOML in, TOML out. What is not said is filled in openly, in one place and one order."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedchoir import methods
from fedchoir.core.settings import Settings
from fedchoir.data.scenario import ScenarioInfo
from fedchoir.data.scenario import info as scenario_info
from fedchoir.privacy.eligibility import Secure
from fedchoir.utils.errors import UsageError
from fedchoir.utils.sizes import parse_size


class Experiment(BaseModel):
    """What to run. Fields left at None are the scenario's own.

    >>> Experiment(method="fccl+", scenario="digits-lite", rounds=2, settings={"omega": 1}).method
    'fccl+'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(description="name of a method (fedchoir list methods)")
    scenario: str = Field("digits-lite", description="name of a scenario, or a folder with one data set per client")
    public: str | None = Field(None, description="name of a public set, or a folder or .npz; default: the scenario's")
    models: tuple[str, ...] | None = Field(None, description="architectures, one per client, repeated in turn")
    rounds: int | None = Field(None, ge=1, description="communication rounds; default: the scenario's")
    seed: int = Field(0, ge=0, description="every draw is derived from it")
    profile: Literal["fixed", "paper", "official"] = Field("fixed", description="how ambiguities are settled")
    data_root: Path | None = Field(None, description="where data sets lie; default: FEDCHOIR_DATA")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    devices: tuple[str, ...] | None = Field(
        None, description="several, with a process each: how many, or which (cuda:0,cuda:1 or cpu,cpu); default: one"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="arithmetic of the models")
    fused: bool = Field(False, description="fused layers on GPUs: our own Triton kernels, compiled when first needed")
    state_budget: str = Field(
        "2GB",
        description="memory for the states of clients, such as 500MB; beyond it those not at work lie on disk. The "
        "numbers are the same",
    )
    quorum: float = Field(0.5, gt=0, le=1, description="share of the clients that an exchange needs")
    secure: Secure = Field(
        False, description="true: the server sees only means of answers; strict: even if it lies about who answered"
    )
    out: Path | None = Field(None, description="folder of the run; default: runs/SCENARIO-METHOD-PROFILE-seedN")
    settings: dict[str, Any] = Field(default_factory=dict, description="options of the method (--set)")

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("state_budget", mode="before")
    @classmethod
    def _a_size(cls, value: Any) -> str:
        parse_size(str(value))
        return str(value)

    @field_validator("devices", mode="before")
    @classmethod
    def _device_names(cls, value: Any) -> Any:
        return cls._names(str(value) if isinstance(value, int) else value)


class Plan(BaseModel):
    """An experiment with nothing left open: what `Experiment`, profile and scenario come to together."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    experiment: Experiment
    params: Settings
    models: tuple[str, ...]
    rounds: int
    public: str | None
    out: Path


def make(values: Mapping[str, Any]) -> Experiment:
    """An experiment from plain values, or one line that says which is wrong."""
    try:
        return Experiment(**values)
    except ValidationError as error:
        raise UsageError(one_line(error, Experiment, "")) from None


def plan(experiment: Experiment) -> Plan:
    """Fill in what was not said. Later ones win: the method's defaults (profile ``fixed``), the scenario's defaults,
    the profile, the user's settings."""
    method = methods.get(experiment.method)
    scenario = scenario_info(experiment.scenario)
    usual = {k: v for k, v in scenario.defaults.items() if k != "rounds"}
    if experiment.settings.get("partition") == "file":
        usual.pop("clients", None)  # the file says how many there are
    values = {
        **usual,
        **method.profile(experiment.profile, scenario.name),
        **experiment.settings,
    }
    try:
        params = method.Params(**values)
    except ValidationError as error:
        raise UsageError(one_line(error, method.Params, f" of {experiment.method}")) from None
    name = f"{Path(experiment.scenario).name}-{experiment.method}-{experiment.profile}-seed{experiment.seed}"
    return Plan(
        experiment=experiment,
        params=params,
        models=experiment.models or default_models(method, scenario),
        rounds=experiment.rounds or int(scenario.defaults.get("rounds", 40)),
        public=(experiment.public or scenario.public) if method.needs_public else None,
        out=experiment.out or Path("runs") / name,
    )


def default_models(method: type[methods.Method], scenario: ScenarioInfo) -> tuple[str, ...]:
    """The scenario's own models; its homogeneous one for a method that needs a single architecture."""
    return scenario.models if method.heterogeneous else (scenario.homogeneous_model,)


def one_line(error: ValidationError, model: type[BaseModel], whose: str) -> str:
    """The first thing that is wrong: the option, the value, what would be right."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, model.model_fields, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(model.model_fields))}"
        return f"there is no option {name!r}{whose}; {hint}"
    if first["type"] == "missing":
        return f"{name} is missing: {model.model_fields[name].description}"
    right = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name} = {first['input']!r}{whose} is not possible: it should be {right}"


def read(path: Path) -> dict[str, Any]:
    """The values of an experiment file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML; `make(read(...))` gives the same experiment back."""
    values = experiment.model_dump(mode="json", exclude_none=True)
    return tomli_w.dumps(values)


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` of ``--set``; the value as TOML would read it, or else as text.

    >>> parse_setting("omega=1.5"), parse_setting("sync=epoch"), parse_setting("use_fisl=false")
    (('omega', 1.5), ('sync', 'epoch'), ('use_fisl', False))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text!r} is not possible: it should be key=value, for example --set local_epochs=5")
    try:
        return key.strip(), tomllib.loads(f"x = {value.strip()}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
