"""The trained models of a run: described when it starts, loaded from its checkpoint when it has ended.

``models.json`` in the folder of a run describes how each client's model is built and how raw samples become its inputs.
A site has the same file, with its own model alone, in the work folder of its node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from fedchoir import methods
from fedchoir.core import checkpoint
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.validation import BEST, BEST_ROUND
from fedchoir.data.preprocessing import Preprocessing, describe_preprocessing, load_preprocessing
from fedchoir.data.samples import Samples
from fedchoir.engines.local.state_cache import state_name
from fedchoir.methods.base import Method
from fedchoir.models import Model
from fedchoir.models.spec import ModelSpec
from fedchoir.payload import load_tensors
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.io import atomic_write_json

FILE = "models.json"
GLOBAL_FILE = "global.safetensors"  # at a site: the global model that it last received for evaluation


class ClientEntry(BaseModel):
    """One client of a run, and how raw samples become the inputs of its model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    model: str
    train: int
    test: int
    domain: str
    preprocessing: dict[str, Any]


class RunModels(BaseModel):
    """The content of ``models.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    settings: dict[str, Any]
    scenario: str
    classes: tuple[str, ...]
    inputs: InputSpec
    rounds: int
    seed: int
    public_size: int
    public_set: str = ""
    clients: tuple[ClientEntry, ...]

    def spec(self) -> FederationSpec:
        clients = tuple(ClientInfo(c.name, c.model, c.train, c.test, c.domain) for c in self.clients)
        return FederationSpec(self.classes, clients, self.rounds, self.seed, self.public_size, self.inputs)


def write_models(
    folder: Path, method: Method, scenario: str, samples: Mapping[int, Samples], models: Mapping[int, str] | None = None
) -> None:
    """Describe the models of the clients whose private samples are given, by index.

    ``models`` has the full names of models that others know by a shorter one.
    """
    spec, models = method.spec, models or {}
    clients = tuple(
        ClientEntry(
            **{
                **asdict(spec.clients[k]),
                "model": str(ModelSpec.parse(models.get(k, spec.clients[k].model)).absolute()),
            },
            preprocessing=describe_preprocessing(own),
        )
        for k, own in sorted(samples.items())
    )
    described = RunModels(
        method=method.name, settings=method.params.model_dump(mode="json"), scenario=scenario, classes=spec.classes,
        inputs=spec.inputs, rounds=spec.rounds, seed=spec.seed, public_size=spec.public_size,
        public_set=method.public_set, clients=clients,
    )  # fmt: skip
    atomic_write_json(folder / FILE, described.model_dump(mode="json"))


@dataclass(frozen=True)
class Predictions:
    """The classes of new samples.

    Attributes:
        samples: names of the samples: files, or positions from 0.
        labels: the most probable class of each sample.
        probabilities: N×C, float32.
        classes: the order of the columns of ``probabilities``.
    """

    samples: list[str]
    labels: list[str]
    probabilities: Tensor
    classes: tuple[str, ...]


@dataclass(frozen=True)
class TrainedModel:
    """A client's model after a run, with its preprocessing.

    Attributes:
        model: as the client trained it.
        predictor: inputs of the model → probabilities of the classes.
        preprocessing: reads raw samples and makes inputs of them.
        round: the round after which the weights were saved, counted from 1.
    """

    model: Model
    predictor: nn.Module
    preprocessing: Preprocessing
    run: RunModels
    client: ClientEntry
    round: int
    best: bool
    folder: Path

    @property
    def classes(self) -> tuple[str, ...]:
        return self.run.classes

    @torch.no_grad()
    def probabilities(self, inputs: Tensor, batch: int = 250) -> Tensor:
        """Of every class, N×C, from stored inputs (before the transform)."""
        chunks = [self.predictor(self.preprocessing.transform(chunk)) for chunk in inputs.split(batch)]
        return torch.cat(chunks) if chunks else torch.zeros(0, len(self.classes))

    def predict(self, data: Any) -> Predictions:
        """The classes of new samples, which are given before preprocessing.

        Args:
            data: a folder or file, as for ``fedchoir predict``; a pandas DataFrame; a list of texts; or an array or
                tensor, N×…, of the form that an exported model takes.
        """
        names, inputs = self.preprocessing.samples(data, self.client.preprocessing)
        probabilities = self.probabilities(inputs)
        labels = [self.classes[k] for k in probabilities.argmax(dim=1).tolist()]
        return Predictions(names, labels, probabilities, self.classes)


def load_predictor(folder: Path | str, client: str | None = None, *, best: bool = False) -> TrainedModel:
    """A client's trained model with its preprocessing: ``.predict("new.csv")`` gives classes and probabilities.

    ``best``: of its best round by its validation samples. ``client`` may be left out if there is only one.
    """
    return load_trained(Path(folder), client, best=best)


def load_model(folder: Path | str, client: str | None = None, *, best: bool = False) -> nn.Module:
    """A client's trained model, in eval mode on the CPU. ``best``: of its best round by its validation samples."""
    return load_trained(Path(folder), client, best=best).model


def load_trained(folder: Path, client: str | None = None, *, best: bool = False) -> TrainedModel:
    """A client's trained model with its preprocessing; ``client`` may be left out if there is only one."""
    folder = _run_folder(folder)
    described = read_models(folder)
    index = _index(described, client, folder)
    entry = described.clients[index]
    method_class = methods.get(described.method, described.public_set)
    method = method_class(method_class.Params(**described.settings), described.spec())
    model = method.build_model(ModelSpec.parse(entry.model).architecture)
    if method.params.dp_noise:
        without_batchnorm(model)
    modules = nn.ModuleDict(method.extra_modules(model))
    state, server, round_index = _stored(folder, index)
    method.server = server
    weights = _weights(method, state, best, index, round_index, folder)
    if best:
        round_index = int(state[f"memory/{BEST_ROUND}"])
    _load(model, weights, folder)
    _load(modules, {n.removeprefix("modules/"): t for n, t in state.items() if n.startswith("modules/")}, folder)
    model.eval().requires_grad_(False)
    modules.eval().requires_grad_(False)
    preprocessing = load_preprocessing(entry.preprocessing, method.params)
    predictor = nn.Sequential(method.inference_module(model, modules), nn.Softmax(dim=1)).eval()
    return TrainedModel(model, predictor, preprocessing, described, entry, round_index + 1, best, folder)


def _run_folder(folder: Path) -> Path:
    """The folder of a run as it is; of the work folder of a node, its only run."""
    runs = [] if (folder / FILE).exists() else [path.parent for path in folder.glob(f"state/*/{FILE}")]
    if len(runs) > 1:
        newest_first = sorted(runs, key=lambda run: (run / FILE).stat().st_mtime, reverse=True)
        raise UsageError(f"{folder} has {len(runs)} runs; give one, newest first: {', '.join(map(str, newest_first))}")
    return runs[0] if runs else folder


def read_models(folder: Path) -> RunModels:
    """The description of a run's models."""
    path = folder / FILE
    if not path.exists():
        raise UsageError(f"{folder} has no {FILE}, so its models cannot be loaded: give the folder of a run or a node")
    try:
        found = RunModels.model_validate_json(path.read_text())
    except (ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    clients = tuple(entry.model_copy(update={"model": _located(entry.model)}) for entry in found.clients)
    return found.model_copy(update={"clients": clients})


def _located(model: str) -> str:
    """The model with its file looked for in the working folder, if it is no longer where the run had it."""
    spec = ModelSpec.parse(model)
    if spec.kind != "file" or Path(spec.source.rpartition(":")[0]).expanduser().is_file():
        return model
    here = spec.without_folders()
    return str(here if Path(here.source.rpartition(":")[0]).is_file() else spec)


def _index(described: RunModels, client: str | None, folder: Path) -> int:
    names = [entry.name for entry in described.clients]
    if client is None and len(names) == 1:
        return 0
    if client not in names:
        what = "--client is missing" if client is None else f"{folder} has no client {client!r}"
        raise UsageError(f"{what}; its clients are {', '.join(names)}")
    return names.index(client)


def _stored(folder: Path, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """A client's state, the server's state and the last round: from a run's checkpoint, or from a site's files."""
    if found := checkpoint.newest_intact(folder / "checkpoint"):
        saved, _ = found
        facts = checkpoint.facts(saved)
        path = saved / f"{state_name(index)}.safetensors"
        return (load_tensors(path) if path.exists() else {}), checkpoint.load(saved, "server"), int(facts["round"])
    states = sorted(folder.glob("state-*.safetensors"))
    if not states:
        raise UsageError(f"{folder} holds no trained model yet: no checkpoint was written")
    state = load_tensors(states[-1])
    about = json.loads(bytes(state.pop("about").tolist()))
    shared = folder / GLOBAL_FILE
    server = {f"weights/{n}": t for n, t in load_tensors(shared).items()} if shared.exists() else {}
    return state, server, int(about["round"])


def _weights(
    method: Method, state: dict[str, Tensor], best: bool, index: int, round_index: int, folder: Path
) -> dict[str, Tensor]:
    """The weights that the run evaluated: the global model's where there are some, else the client's own."""
    if best:
        prefix = f"memory/{BEST}/"
        found = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        if not found:
            name = method.spec.clients[index].name
            raise UsageError(f"{folder} has no best round of {name}: {_no_best_round(method, folder)}")
        return found
    own = {n.removeprefix("model/"): t for n, t in state.items() if n.startswith("model/")}
    if weights := method.global_weights():
        return {**own, **method.client_weights(index, weights, round_index)}
    return own


def _no_best_round(method: Method, folder: Path) -> str:
    """Why a client has no best round, and what to do."""
    if not method.params.validation:
        return "run with --set validation=0.1 to keep it"
    about = folder / "task.json"  # a site does not have it
    metric = json.loads(about.read_text()).get("metric") if about.exists() else None
    return (
        f"{metric or 'the metric'} was not defined on its validation samples in any evaluated round, for example "
        "because they are all of one class; leave out --best, or run with another --metric"
    )


def _load(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise UsageError(f"the weights in {folder} do not fit the model that {FILE} describes: {first}") from None
