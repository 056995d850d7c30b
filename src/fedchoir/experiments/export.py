"""Export a trained model: weights alone, or one program with the preprocessing inside, each with a model card."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedchoir.core.result import versions
from fedchoir.data.preprocessing import stored_zeros
from fedchoir.experiments.model_card import METRICS_OF, card_text
from fedchoir.experiments.trained import TrainedModel
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_path, atomic_write, atomic_write_json

Format = Literal["torch", "safetensors", "onnx", "torch-export"]
SUFFIX: dict[str, str] = {"torch": ".pt", "safetensors": ".safetensors", "onnx": ".onnx", "torch-export": ".pt2"}
_ANY_BATCH = {"samples": {0: torch.export.Dim("batch", min=1)}}
TOLERANCE = 1e-4  # of probabilities: another runtime adds up in another order


class Pipeline(nn.Module):
    """Stored samples → probabilities: the transform and the model in one module."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.transform, self.predictor = trained.preprocessing.transform, trained.predictor

    def forward(self, samples: Tensor) -> Tensor:
        return self.predictor(self.transform(samples))


def export(trained: TrainedModel, kind: str, out: Path | None = None) -> list[Path]:
    """Write a model in one of the formats, with its card; returns the files."""
    if kind not in get_args(Format):
        raise UsageError(f"--format {kind!r} is not possible: it should be one of {', '.join(get_args(Format))}")
    name = f"{trained.client.name}{'-best' if trained.best else ''}{SUFFIX[kind]}"
    path = out or trained.folder / "export" / name
    if path.suffix != SUFFIX[kind]:
        raise UsageError(f"--out {path} should end with {SUFFIX[kind]} for --format {kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = description(trained, kind, path.name)
    with atomic_path(path) as part:
        if kind in ("torch", "safetensors"):
            _write_weights(part, kind, trained)
        elif kind == "onnx":
            _write_onnx(part, trained, facts)
        else:
            _write_program(part, trained, facts)
    about, card = (path.with_name(path.name + suffix) for suffix in (".json", ".md"))
    atomic_write_json(about, facts)
    atomic_write(card, card_text(facts))
    return [path, about, card]


def description(trained: TrainedModel, kind: str, file: str) -> dict[str, Any]:
    """The facts of a model card."""
    run, client = trained.run, trained.client
    file_of_result = trained.folder / "result.json"
    result = json.loads(file_of_result.read_text()) if file_of_result.exists() else None
    return {
        "file": file, "format": kind, "client": client.name,
        "architecture": str(ModelSpec.parse(client.model).without_folders()),
        "parameters": sum(p.numel() for p in trained.model.parameters()), "classes": list(run.classes),
        "inputs": {"modality": run.inputs.modality, "shape": list(run.inputs.shape)},
        "preprocessing": client.preprocessing, "method": run.method, "scenario": run.scenario,
        "training_samples": client.train, "round": trained.round, "rounds": result["rounds"] if result else None,
        "planned_rounds": run.rounds, "best_round": trained.best, "seed": run.seed, "settings": run.settings,
        "metrics": _metrics(result, trained) if result else {}, "metrics_of": METRICS_OF[trained.best],
        "versions": versions(),
    }  # fmt: skip


def _metrics(result: Mapping[str, Any], trained: TrainedModel) -> dict[str, dict[str, float]]:
    """{metric: {test set: value}} of the client: in its best round, or the means that the run reports."""
    rows: dict[str, list[float]] = {}
    if trained.best:
        for best in result.get("best", ()):
            if best["client"] == trained.client.name and best["round"] + 1 == trained.round:
                rows = best["metrics"]
    else:
        names = [entry["name"] for entry in result["clients"]]
        metrics = result.get("metrics") or {"accuracy": result["accuracy"]}
        if trained.client.name in names:
            row = names.index(trained.client.name)
            rows = {name: values[row] for name, values in metrics.items() if values}
    return {name: dict(zip(result["tests"], values, strict=False)) for name, values in rows.items() if values}


def _write_weights(path: Path, kind: str, trained: TrainedModel) -> None:
    """The weights under the names of the user's own module, without the wrapper's prefix."""
    names = trained.model.bare_names()
    state = {names[name]: t.detach().contiguous().clone() for name, t in trained.model.state_dict().items()}
    if kind == "safetensors":
        save_file(state, path, metadata={"classes": json.dumps(trained.run.classes)})
    else:
        torch.save(state, path)


def traceable(trained: TrainedModel) -> tuple[Pipeline, Tensor]:
    """The pipeline and an example batch. It runs once, so that a transform caches constants and not traced tensors."""
    pipeline, inputs = Pipeline(trained).eval(), stored_zeros(trained.client.preprocessing, 2)
    pipeline(inputs)
    return pipeline, inputs


def _write_program(path: Path, trained: TrainedModel, facts: dict[str, Any]) -> None:
    """``torch.export``'s format: `torch.export.load(path).module()(samples)` gives probabilities."""
    pipeline, inputs = traceable(trained)
    try:
        program = torch.export.export(pipeline, (inputs,), dynamic_shapes=_ANY_BATCH)
    except Exception as error:
        raise _impossible("torch-export", trained, error) from error
    _compare("torch-export", trained, lambda x: program.module()(x))
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={"card.json": json.dumps(facts)})


def _write_onnx(path: Path, trained: TrainedModel, facts: dict[str, Any]) -> None:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("--format onnx needs the extra export: pip install 'fedchoir[export]'") from None
    pipeline, inputs = traceable(trained)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's about its own code
            program = torch.onnx.export(
                pipeline, (inputs,), dynamo=True, input_names=["samples"], output_names=["probabilities"],
                dynamic_shapes=_ANY_BATCH, verbose=False,
            )  # fmt: skip
    except Exception as error:
        raise _impossible("onnx", trained, error) from error
    assert program is not None
    model = program.model_proto
    for key, value in (("classes", facts["classes"]), ("card", facts)):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _impossible("onnx", trained, error) from error
    _compare("onnx", trained, lambda x: torch.from_numpy(session.run(None, {"samples": x.numpy()})[0]))
    onnx.save(model, path)


def _compare(kind: str, trained: TrainedModel, run: Any) -> None:
    """The exported program gives the model's probabilities on random samples, in batches of several sizes."""
    generator = torch.Generator().manual_seed(0)
    for count in (1, 5):
        zeros = stored_zeros(trained.client.preprocessing, count)
        high = 256 if zeros.dtype == torch.uint8 else max(2, trained.run.inputs.vocabulary)
        whole = not zeros.is_floating_point()
        samples = (
            torch.randint(0, high, zeros.shape, generator=generator).to(zeros.dtype)
            if whole
            else torch.randn(zeros.shape, generator=generator)
        )
        try:
            found = run(samples)
        except Exception as error:  # of another runtime: the example batch had another size
            raise _impossible(kind, trained, error) from error
        difference = float((found - trained.probabilities(samples)).abs().max())
        if not difference <= TOLERANCE:
            raise UsageError(
                f"--format {kind}: the exported model's probabilities differ by {difference:.2g} from those of torch "
                f"(allowed: {TOLERANCE:g}), so nothing was written"
            )


def _impossible(kind: str, trained: TrainedModel, error: Exception) -> UsageError:
    first = next(iter(" ".join(str(error).split()).split(". ")), "")[:300]
    return UsageError(
        f"--format {kind} is not possible for {trained.client.model}: {type(error).__name__}: {first}; "
        "--format safetensors writes the weights"
    )
