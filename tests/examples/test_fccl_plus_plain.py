"""examples/fccl_plus_plain.py as an oracle: the framework's clients end a round with exactly the script's weights.

The comparison is bitwise in float32. A tolerance would not work: some gradients are 0 in exact arithmetic (that of the
classifier's bias under FCCM), and Adam turns their rounding error into steps of the size of the learning rate. So a
loss that is rewritten with another order of operations fails here even if it is correct; the script must then follow.
Further tests compare the script's losses with the paper's equations in float64, where the order does not matter.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conftest import MIXED
from tests.federation_harness import FederationHarness
from torch import Tensor, nn
from torch.optim import Optimizer
from torchvision.ops import StochasticDepth

from fedchoir import Experiment
from fedchoir.core.client import Client
from fedchoir.core.training import Batch, EagerTrainer, Loss

SCRIPT = Path(__file__).parents[2] / "examples" / "fccl_plus_plain.py"
MOBILE = ("resnet12@4", "mobilenet_v2@0.25", "efficientnet_b0@0.25")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[SCRIPT.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = load_script()


class Recorder(EagerTrainer):
    """Trains as the framework does on a CPU, and keeps the batches of each client in their order."""

    def __init__(self) -> None:
        self.public: dict[int, list[Tensor]] = {}
        self.private: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        batches = list(batches)
        for batch in batches:
            if len(batch.labels):
                self.private.setdefault(client.index, []).append((batch.inputs, batch.labels))
            else:
                self.public.setdefault(client.index, []).append(batch.inputs)
        return super().train(client, optimizer, loss, batches)


class Pair:
    """The framework's clients and, with the same initial weights, the script's models."""

    def __init__(self, experiment: Experiment) -> None:
        self.rounds = experiment.rounds
        self.federation = FederationHarness(experiment)
        for client in self.federation.clients:
            without_dropout(client.model)
        self.models: list[nn.Module] = [deepcopy(client.model) for client in self.federation.clients]

    def framework_round(self) -> Recorder:
        """Play the framework's next round; its batches."""
        recorder = Recorder()
        for client in self.federation.clients:
            client.trainer = recorder
        self.federation.run_rounds()
        return recorder

    def script_round(self, index: int, seen: Recorder, **options: float) -> None:
        """The same round by the script, on the same batches."""
        lr = 1e-3 * (1 - 0.9 * index / self.rounds)  # the framework's default schedule
        public, private = seen.public[0], [seen.private[k] for k in range(len(self.models))]
        plain.fccl_plus_round(self.models, public, private, replace(plain.Options(lr=lr), **options))

    def different(self) -> list[str]:
        """The weights and buffers that are not the same."""
        return [
            f"{client.name}: {name}"
            for client, model in zip(self.federation.clients, self.models, strict=True)
            for (name, ours), theirs in zip(client.model.state_dict().items(), model.state_dict().values(), strict=True)
            if not torch.equal(ours, theirs)
        ]


def without_dropout(model: nn.Module) -> None:
    """Both draw dropout masks from seeds of their own, so a comparison needs models without it."""
    for layer in model.modules():
        if isinstance(layer, nn.Dropout | StochasticDepth):
            layer.p = 0.0


@pytest.fixture
def pair(small: Callable[..., Experiment]) -> Callable[..., Pair]:
    """Makes a pair; the last batches are smaller than the others."""

    def make(models: tuple[str, ...] = MIXED, rounds: int = 2, **settings: Any) -> Pair:
        return Pair(small("fccl+", models=models, rounds=rounds, settings={"local_batch": 20, **settings}))

    return make


# -- the round ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [MIXED, MOBILE], ids=["mixed", "mobile"])
def test_the_framework_ends_each_round_with_the_weights_of_the_script(
    models: tuple[str, ...], pair: Callable[..., Pair]
) -> None:
    """Two rounds: in the second one the teacher is a trained model."""
    p = pair(models)
    for index in range(2):
        before = deepcopy(p.models)
        seen = p.framework_round()
        p.script_round(index, seen)
        assert p.different() == []
        for old, new in zip(before, p.models, strict=True):
            assert all(not torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True))


def test_the_batches_are_those_of_a_round(pair: Callable[..., Pair]) -> None:
    """All clients get the same public batches, and each epoch holds all of a client's private data."""
    p = pair(public_epochs=2)
    seen = p.framework_round()
    assert [len(images) for images in seen.public[0]] == 2 * [16, 16, 8]
    for k, client in enumerate(p.federation.clients):
        assert all(torch.equal(a, b) for a, b in zip(seen.public[k], seen.public[0], strict=True))
        assert [len(labels) for _, labels in seen.private[k]] == 2 * [20, 20, 8]
        for epoch in (seen.private[k][:3], seen.private[k][3:]):
            labels = torch.cat([labels for _, labels in epoch])
            assert torch.equal(labels.bincount(), client.private.labels.bincount())


@pytest.mark.parametrize(
    ("name", "value"),
    [("off_diagonal", 0.05), ("similarity_temperature", 0.1), ("omega", 1.0), ("temperature", 1.0), ("lr", 2e-3)],
)
def test_an_option_means_the_same_in_both(name: str, value: float, pair: Callable[..., Pair]) -> None:
    """If only the framework is given the option, the weights differ: the comparison is sensitive to each of them."""
    p = pair(rounds=1, public_epochs=2, **({"local_lr": value, "public_lr": value} if name == "lr" else {name: value}))
    initial = deepcopy(p.models)
    seen = p.framework_round()
    p.script_round(0, seen, **{name: value})
    assert p.different() == []
    p.models = initial
    p.script_round(0, seen)
    assert p.different() != []


# -- the losses, entry by entry ----------------------------------------------------------------------------------------


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def divergence(p: list[float], q: list[float], skip: int | None = None) -> float:
    return sum(a * math.log(a / b) for u, (a, b) in enumerate(zip(p, q, strict=True)) if u != skip)


def test_fccm_is_equations_1_and_2() -> None:
    z, z_mean = numbers(6, 3, seed=0), numbers(6, 3, seed=1)

    def column(matrix: Tensor, u: int) -> list[float]:
        values = matrix[:, u].tolist()
        return [value - sum(values) / len(values) for value in values]

    def m(u: int, v: int) -> float:
        a, b = column(z, u), column(z_mean, v)
        return dot(a, b) / math.sqrt(dot(a, a)) / math.sqrt(dot(b, b))

    expected = sum((1 - m(u, u)) ** 2 for u in range(3))
    expected += 0.1 * sum((1 + m(u, v)) ** 2 for u in range(3) for v in range(3) if u != v)
    assert plain.fccm(z, z_mean, 0.1).item() == pytest.approx(expected, rel=1e-12)


def test_fisl_is_equations_3_to_5() -> None:
    h, others = numbers(5, 4, seed=2), numbers(5, 7, seed=3)

    def similarities(matrix: Tensor, u: int) -> list[float]:
        rows = matrix.tolist()
        cosine = [dot(rows[u], row) / math.hypot(*rows[u]) / math.hypot(*row) for row in rows]
        return [value / 0.5 for v, value in enumerate(cosine) if v != u]

    s, s_mean = plain.instance_similarity(h, 0.5), plain.instance_similarity(others, 0.5)
    assert s.shape == (5, 4)
    rows = [(softmax(similarities(others, u)), softmax(similarities(h, u))) for u in range(5)]
    expected = sum(divergence(p, q) for p, q in rows) / 5
    assert plain.fisl(s, s_mean).item() == pytest.approx(expected, rel=1e-12)


def test_fntd_is_equation_13() -> None:
    student, teacher, labels = numbers(5, 4, seed=4), numbers(5, 4, seed=5), torch.tensor([0, 3, 1, 1, 2])
    rows = [(softmax((t / 3).tolist()), softmax((s / 3).tolist())) for s, t in zip(student, teacher, strict=True)]
    expected = 9 * sum(divergence(p, q, skip=y) for (p, q), y in zip(rows, labels.tolist(), strict=True)) / 5
    assert plain.fntd(student, teacher, labels, 3.0).item() == pytest.approx(expected, rel=1e-12)


# -- the script --------------------------------------------------------------------------------------------------------


def test_the_script_stands_alone() -> None:
    imports = [line for line in SCRIPT.read_text(encoding="utf-8").splitlines() if "import" in line.split()]
    assert len(imports) > 5
    assert not [line for line in imports if "fedchoir" in line]


def test_the_demonstration_prints_a_row_for_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    plain.demo(rounds=1, epochs=1)
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["plain", "inverted", "blurred"]
    assert all(0 <= float(value) <= 100 for row in rows for value in row.split()[-4:])
