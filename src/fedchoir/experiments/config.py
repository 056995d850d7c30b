"""`Experiment`: what to run. `make_plan` fills in everything that was left open."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, field_validator
from torch import nn

from fedchoir import methods
from fedchoir.core.eligibility import Secure
from fedchoir.core.metrics import MetricName
from fedchoir.core.settings import Settings
from fedchoir.core.wire import check_compression
from fedchoir.data.options import DataOptions
from fedchoir.data.protocol import check_protocol
from fedchoir.data.registry import ScenarioInfo
from fedchoir.data.registry import info as scenario_info
from fedchoir.experiments.checkpoints import Every, read_every
from fedchoir.experiments.profiles import Profile, profile_options
from fedchoir.models import objects
from fedchoir.models.spec import ModelSpec, split_models
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import Options
from fedchoir.utils.sizes import parse_size


class Experiment(Options):
    """What to run. None stands for the scenario's default.

    >>> Experiment(method="fccl+", scenario="digits-lite", rounds=2, settings={"omega": 1}).method
    'fccl+'
    """

    method: str = Field(description="name of a method (fedchoir list methods)")
    scenario: str = Field("digits-lite", description="name of a scenario, or a folder with one data set per client")
    public: str | None = Field(
        None, description="name of a public set, condensed, or a folder or .npz; default: the scenario's"
    )
    models: tuple[str, ...] | None = Field(
        None, description="one per client, repeated in turn: names, FILE.py:FACTORY, or in Python modules"
    )
    weights: tuple[str, ...] | None = Field(
        None, description="files that the models start from: one for all clients, or one per client, none for none"
    )
    rounds: int | None = Field(None, ge=1, description="communication rounds; default: the scenario's")
    seed: int = Field(0, ge=0, description="all random draws are derived from it")
    profile: Profile = Field("fixed", description="how ambiguities between paper and released code are settled")
    data_root: Path | None = Field(None, description="folder of the data sets; default: FEDCHOIR_DATA")
    cache: Path | None = Field(None, description="folder for decoded images; default: only for sets over 1 GB")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    devices: tuple[str, ...] | None = Field(
        None, description="several devices, one process each: how many, or which (cuda:0,cuda:1); default: one"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="arithmetic of the models")
    fused: bool = Field(False, description="fused layers on GPUs: Triton kernels, compiled when first used")
    state_budget: str = Field(
        "2GB",
        description="memory for the states of clients, such as 500MB; the rest is kept on disk, with the same numbers",
    )
    pretrained: Path | None = Field(
        None, description="folder of pretrained client models that runs share: each is trained once (pretrain_epochs)"
    )
    checkpoint_every: Every = Field(
        "auto",
        description="rounds between checkpoints; auto: so that they cost under 2 % of the time; never: only the last",
    )
    metric: MetricName = Field("accuracy", description="headline of tables and report, and what chooses the best round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of the clients that an exchange needs")
    secure: Secure = Field(
        False, description="secure aggregation; strict: also against a server that lies about who takes part"
    )
    compress: str | None = Field(
        None, description="compression of payloads, such as int8+zstd or topk:0.1+fp16 (docs: compression)"
    )
    out: Path | None = Field(None, description="folder of the run; default: runs/SCENARIO-METHOD-PROFILE-seedN")
    settings: dict[str, Any] = Field(default_factory=dict, description="options of the method (--set)")

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, str):
            return split_models(value)
        items = [value] if isinstance(value, nn.Module | dict) else value
        return tuple(map(_model_name, items)) if isinstance(items, list | tuple) else value

    @field_validator("devices", "weights", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_names(str(value) if isinstance(value, int) else value)

    @field_validator("compress")
    @classmethod
    def _known_stages(cls, value: str | None) -> str | None:
        check_compression(value or "")
        return value or None

    @field_validator("state_budget", mode="before")
    @classmethod
    def _a_size(cls, value: Any) -> str:
        parse_size(str(value))
        return str(value)

    @field_validator("checkpoint_every", mode="before")
    @classmethod
    def _rounds(cls, value: Any) -> Every:
        return read_every(value)

    def to_toml(self) -> str:
        """As a file that `read_experiment` reads back."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


@dataclass(frozen=True)
class Plan:
    """An experiment with nothing left open."""

    experiment: Experiment
    params: Settings
    models: tuple[str, ...]
    rounds: int
    public: str | None
    out: Path


def make_plan(experiment: Experiment) -> Plan:
    """Fill in what an experiment leaves open, from its method, scenario and profile."""
    method = methods.get(experiment.method, experiment.public)
    scenario = scenario_info(experiment.scenario, data_options(experiment.settings))
    name = f"{Path(experiment.scenario).name}-{experiment.method}-{experiment.profile}-seed{experiment.seed}"
    params = make_params(method, scenario, experiment.profile, experiment.settings)
    plan = Plan(
        experiment=experiment,
        params=params,
        models=with_weights(
            experiment.models or (scenario.models if method.heterogeneous else (scenario.homogeneous_model,)),
            experiment.weights or (),
        ),
        rounds=params.averaging_rounds(experiment.rounds or int(scenario.defaults.get("rounds", 40))),
        public=(experiment.public or scenario.public) if method.needs_public else None,
        out=experiment.out or Path("runs") / name,
    )
    check_protocol(scenario, plan.params)
    _check_models_and_rounds(plan)
    return plan


def _check_models_and_rounds(plan: Plan) -> None:
    """Refuse a protocol that makes no sense with the models or the rounds of a plan."""
    if plan.params.rotate and len(set(plan.models)) == 1:
        raise UsageError(
            f"rotate = True is not possible: all clients have one model, {plan.models[0]}; give several with --models"
        )
    for name, first in plan.params.late_rounds.items():
        if first > plan.rounds:
            raise UsageError(
                f"join_late = '{name}:{first}' is not possible: the run has {plan.rounds} rounds; the round should be "
                f"from 2 to {plan.rounds}"
            )


def data_options(settings: Mapping[str, Any]) -> DataOptions:
    """The options among a user's settings that choose the data."""
    return DataOptions(**{key: value for key, value in settings.items() if key in DataOptions.model_fields})


def make_params(
    method: type[methods.Method], scenario: ScenarioInfo | None, profile: str, settings: dict[str, Any]
) -> Settings:
    """The options that a run uses. Later ones win: the method's defaults, the scenario's defaults, the profile, the
    user's settings. Without a scenario: a federation of real sites, whose file may name a modality."""
    values = dict(scenario.defaults) if scenario else {}
    values.pop("rounds", None)
    if settings.get("partition") == "file":
        values.pop("clients", None)  # the file determines how many there are
    where = (scenario.name, scenario.modality) if scenario else ("", str(settings.get("modality", "")))
    values |= profile_options(method, profile, *where) | settings
    try:
        return method.Params(**values)
    except UsageError as error:
        raise UsageError(f"{method.name}: {error}") from None


def read_experiment(path: Path) -> Experiment:
    """The experiment in a TOML file."""
    return Experiment(**read_values(path))


def read_values(path: Path) -> dict[str, Any]:
    """The fields of an experiment in a TOML file. Files of models may lie beside it."""
    values = read_toml(path)
    names = values.get("models")
    listed = split_models(names) if isinstance(names, str) else names
    if listed and isinstance(listed, list | tuple):  # anything else is an error of `Experiment`
        values["models"] = [str(ModelSpec.read(model).relative_to(path.parent)) for model in listed]
    return values


def with_weights(models: tuple[str, ...], weights: tuple[str, ...]) -> tuple[str, ...]:
    """Each client's model with the file that it starts from.

    >>> with_weights(("mlp", "resnet10"), ("a.pt", "none", "b.pt"))[:3]
    ('mlp[weights=a.pt]', 'resnet10', 'mlp[weights=b.pt]')
    """
    if not weights:
        return models
    count = math.lcm(len(models), len(weights))
    return tuple(_start_from(models[k % len(models)], weights[k % len(weights)]) for k in range(count))


def _start_from(model: str, weights: str) -> str:
    if weights == "none":
        return model
    return str(ModelSpec(**{**ModelSpec.parse(model).model_dump(), "weights": weights}))


def _model_name(model: Any) -> Any:
    """The string of a table or of a Python object; any other value as it is."""
    if isinstance(model, nn.Module):
        return objects.register(model)
    return str(ModelSpec.read(model)) if isinstance(model, dict) else model


def split_names(value: Any) -> Any:
    """``"a, b"`` as ``("a", "b")``; any other value as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` of ``--set``: the value as TOML reads it, or else as text.

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
