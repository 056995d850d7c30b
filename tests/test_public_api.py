"""`from fedchoir import …`: the exact names, documented and typed, and enough for a plug-in method."""

from __future__ import annotations

import ast
import inspect
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedchoir
from fedchoir import Experiment, methods, run
from fedchoir.utils.plugins import VARIABLE
from tests.helpers import Stop, StopAfter, assert_same

PUBLIC = [
    "MODEL", "MODULE", "Aggregator", "Batch", "Client", "Exchange", "Experiment", "Field", "Method", "Payload",
    "PublicBatch", "PublicMethod", "Result", "Round", "Script", "Settings", "Step", "Teacher", "UsageError",
    "__version__", "by_name", "gather", "load_model", "load_predictor", "losses", "mean", "run", "sends",
    "state_payload", "weighted_mean",
]  # fmt: skip
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(fedchoir, name))]
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(fedchoir, name)) and name != "Field"]


def test_exactly_these_names_are_exported() -> None:
    """A name that disappears breaks plug-ins, and a new one is a promise: change this list on purpose."""
    assert sorted(fedchoir.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(fedchoir))


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS, "losses"])
def test_it_is_documented(name: str) -> None:
    doc = getattr(fedchoir, name).__doc__
    assert doc
    first = doc.strip().splitlines()[0]
    assert len(first) > 15
    assert "dataclass" not in first  # a generated signature is not a docstring


def own_functions(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class of fedchoir defines."""
    for name, value in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(value) and value.__module__.startswith("fedchoir"):
            yield name, value


def assert_typed(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    untyped = [n for n, p in signature.parameters.items() if p.annotation is p.empty and n not in ("self", "cls")]
    assert untyped == [], function
    assert signature.return_annotation is not inspect.Signature.empty, function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_typed(name: str) -> None:
    assert_typed(getattr(fedchoir, name))


@pytest.mark.parametrize("name", CLASSES)
def test_the_methods_of_a_class_are_typed(name: str) -> None:
    for _, function in own_functions(getattr(fedchoir, name)):
        assert_typed(function)


def test_type_checkers_use_the_annotations() -> None:
    assert (Path(fedchoir.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", ["Experiment", "Settings"])
def test_every_field_is_described(name: str) -> None:
    assert [n for n, field in getattr(fedchoir, name).model_fields.items() if not field.description] == []


def test_the_import_is_light() -> None:
    """Deployment, reports, the command line and their libraries are not imported."""
    heavy = ["torch", "flwr", "typer", "rich", "opacus", "dp_accounting", "cryptography", "matplotlib", "pandas"]
    parts = ["fedchoir.deploy", "fedchoir.reporting", "fedchoir.cli"]
    code = f"import fedchoir, sys; print([m for m in {heavy + parts} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_needs_torch_only_when_something_runs() -> None:
    code = "import fedchoir.cli.app, sys; print([m for m in ('torch', 'pandas', 'flwr', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PLUGIN = '''
"""Clients with different models share class means of a projection and pull their own projections towards them."""

from torch import Tensor, nn, stack
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from fedchoir import Batch, Client, Exchange, Field, Method, Payload, Round, Script, Settings, Step, mean, sends


class ProtoParams(Settings):
    pull: float = Field(0.1, ge=0, description="weight of the distance to the shared class means")


class Proto(Method):
    """FedProto in a projected space."""

    name = "proto-example"
    title = "class means of a projection"
    Params = ProtoParams
    params: ProtoParams

    def extra_modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return {"projector": nn.Linear(model.feature_dim, 8)}

    def round(self, r: Round) -> Script:
        prototypes = yield Exchange(self.share, aggregator=mean)
        yield Step(self.learn, received=prototypes)

    @sends(prototypes="C 8")
    def share(self, client: Client) -> Payload:
        onehot = one_hot(client.private.labels, client.model.num_classes).float()
        projected = client.run_module("projector", client.predict_private("features"))
        return Payload(prototypes=onehot.t() @ projected / onehot.sum(0).clamp(min=1).unsqueeze(1))

    def learn(self, client: Client, received: Payload) -> None:
        client.train(self.local_loss, prototype=received["prototypes"][client.private.labels])

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        distance = mse_loss(client.run_module("projector", h), batch["prototype"])
        return stack([cross_entropy(z, batch.labels), self.params.pull * distance]).sum()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = tmp_path / "proto.py"
    path.write_text(PLUGIN.lstrip())
    monkeypatch.setenv(VARIABLE, str(path))
    methods.registry.cache_clear()
    yield path.read_text()
    monkeypatch.undo()
    methods.registry.cache_clear()


def test_one_import_line_is_enough_for_a_method_that_runs_and_resumes(
    plugin: str, small: Callable[..., Experiment]
) -> None:
    imports = [node for node in ast.walk(ast.parse(plugin)) if isinstance(node, ast.ImportFrom | ast.Import)]
    ours = [node for node in imports if "fedchoir" in ast.unparse(node)]
    assert [node.module for node in ours if isinstance(node, ast.ImportFrom)] == ["fedchoir"]
    assert len(ours) == 1
    assert len(plugin.splitlines()) <= 45

    straight, stopped = (small("proto-example", name, rounds=3, settings={"pull": 0.2}) for name in ("one", "two"))
    result = run(straight)
    assert result.settings["pull"] == 0.2
    assert [client["model"] for client in result.clients] == ["simple_cnn@4", "resnet10@4", "mlp"]
    assert result.intra_avg > 45  # chance is 25
    assert all(0 <= value <= 100 for row in result.accuracy for value in row)
    assert result.inter_avg is not None
    assert math.isfinite(result.inter_avg)
    assert result.bytes_up == result.bytes_down == 3 * 3 * (4 * 8 * 4)  # rounds, clients, a 4×8 matrix of floats
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(1)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


def test_a_plugin_is_gone_with_its_variable(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "proto-example" in methods.registry()
    monkeypatch.delenv(VARIABLE)
    methods.registry.cache_clear()
    assert "proto-example" not in methods.registry()
