"""Clients that practise in unison against the same clients one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import draw_shapes
from tests.stage import Stage
from torch import nn

from fedchoir import Experiment, methods, run
from fedchoir.engines import unison
from fedchoir.engines.unison import dense_layers
from fedchoir.federation.phases import Step
from fedchoir.federation.training import EagerTrainer
from fedchoir.models import build

OPTIMISERS = [
    {"optimizer": "sgd", "local_lr": 0.05},
    {"optimizer": "sgd", "local_lr": 0.05, "momentum": 0.9, "local_weight_decay": 1e-2},
    {"optimizer": "adam", "local_lr": 1e-3, "local_weight_decay": 1e-3},
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven clients with 2 to 40 images each."""
    folder = tmp_path_factory.mktemp("crowd")
    rng = np.random.default_rng(8)
    for k, count in enumerate((9, 40, 2, 16, 17, 33, 5)):
        train, test = draw_shapes(rng, count, (1, 1, 1), 30), draw_shapes(rng, 8, (1, 1, 1), 30)
        arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
        np.savez(folder / f"c{k}.npz", **arrays)
    return folder


@pytest.fixture
def stage(crowd: Path, small: Callable[..., Experiment]) -> Callable[..., Stage]:
    def make(method: str = "fedavg", model: str = "mlp@16", **settings: Any) -> Stage:
        chosen = {"local_epochs": 2, "local_batch": 8, "together": "auto", **settings}
        return Stage(small(method, scenario=str(crowd), models=(model,), rounds=4, settings=chosen))

    return make


@pytest.fixture
def sung(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients trained together, each time some did."""
    sizes: list[int] = []
    train = unison.train
    monkeypatch.setattr(unison, "train", lambda clients, *rest: sizes.append(len(clients)) or train(clients, *rest))
    return sizes


def test_nobody_trains_in_unison_unasked(crowd: Path, small: Callable[..., Experiment], sung: list[int]) -> None:
    """The numbers of the local engine are those of real sites, to the last bit, unless one says otherwise."""
    Stage(small("fedavg", scenario=str(crowd), models=("logistic",), rounds=1)).play(1)
    assert not sung


@pytest.mark.parametrize("options", OPTIMISERS)
@pytest.mark.parametrize("model", ["logistic", "mlp@16"])
def test_same_numbers_to_rounding(
    model: str, options: dict[str, Any], stage: Callable[..., Stage], sung: list[int]
) -> None:
    one, two = stage(model=model, together="never", **options), stage(model=model, **options)
    plain, joint = one.play(3), two.play(3)
    assert sung == [7, 7, 7]
    for a, b in zip(one.weights(), two.weights(), strict=True):
        for name in a:
            torch.testing.assert_close(b[name], a[name], rtol=1e-3, atol=2e-5)
    for left, right in zip(plain, joint, strict=True):
        assert left["losses"].keys() == right["losses"].keys()
        for name, losses in left["losses"].items():
            assert right["losses"][name] == pytest.approx(losses, rel=1e-4, abs=1e-6)


def test_it_is_the_same_step_as_one_written_by_hand(stage: Callable[..., Stage], sung: list[int]) -> None:
    """One step of softmax regression in NumPy: W ← W − η·(p − y)ᵀx/n."""
    s = stage(model="logistic", optimizer="sgd", local_lr=0.1, local_epochs=1, local_batch=64, lr_schedule="constant")
    client = s.clients[5]
    start = {name: t.double().numpy() for name, t in client.snapshot().items()}
    images, labels = (t.double().numpy() for t in next(client.private_chunks()))
    x = images.reshape(len(images), -1)
    z = x @ start["head.weight"].T + start["head.bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    p[np.arange(len(x)), labels.astype(int)] -= 1
    s.play(1)
    assert sung == [7]
    after = s.clients[5].snapshot()
    np.testing.assert_allclose(after["head.weight"], start["head.weight"] - 0.1 * p.T @ x / len(x), atol=1e-5)
    np.testing.assert_allclose(after["head.bias"], start["head.bias"] - 0.1 * p.mean(0), atol=1e-5)


def test_the_order_of_the_clients_does_not_matter(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = stage(), stage()
    ask = two.engine.ask
    monkeypatch.setattr(two.engine, "ask", lambda clients, *rest: ask(tuple(reversed(clients)), *rest))
    assert [e["losses"] for e in one.play(2)] == [e["losses"] for e in two.play(2)]


def test_epochs_may_differ_and_may_be_none(stage: Callable[..., Stage], sung: list[int]) -> None:
    epochs = "3,0,1"
    one, two = stage(together="never", local_epochs=epochs), stage(local_epochs=epochs)
    first, second = one.play(2)[1]["losses"], two.play(2)[1]["losses"]
    assert sung == [5, 5]
    assert first.keys() == second.keys()
    assert all(second[name] == pytest.approx(first[name], rel=1e-4) for name in first)


@pytest.mark.parametrize("method", ["fedprox", "moon", "feddecorr", "fednova", "fedrs", "fedntd"])
def test_methods_with_a_local_phase_of_their_own_train_one_by_one(
    method: str, stage: Callable[..., Stage], sung: list[int]
) -> None:
    stage(method).play(1)
    assert not sung


@pytest.mark.parametrize("model", ["simple_cnn@2", "resnet10@4"])
def test_other_models_train_one_by_one(model: str, stage: Callable[..., Stage], sung: list[int]) -> None:
    stage(model=model, local_epochs=1).play(1)
    assert not sung


@pytest.mark.parametrize("options", [{"dp_noise": 1.0}, {"together": "never"}])
def test_private_steps_are_taken_one_by_one(options: dict[str, Any], stage: Callable[..., Stage]) -> None:
    alone, joint = stage(**options), stage()
    actions = [Step(alone.method.practise), Step(joint.method.practise)]
    assert list(alone.engine._unison.groups(range(7), actions[:1])) == [(k,) for k in range(7)]
    assert list(joint.engine._unison.groups(range(7), actions[1:])) == [tuple(range(7))]


def test_hooks_and_trainers_of_a_client_are_heeded(stage: Callable[..., Stage], sung: list[int]) -> None:
    class Own(EagerTrainer):
        pass

    seen: list[int] = []
    one, two = stage(), stage()
    one.clients[3].trainer = Own()
    two.clients[3].model.head.register_forward_hook(lambda *_: seen.append(1))
    one.play(1), two.play(1)
    assert not sung
    assert seen


def test_solo_too(stage: Callable[..., Stage], sung: list[int]) -> None:
    """SOLO says how many epochs a client takes, in a function of its own: it is left alone."""
    stage("solo").play(1)
    assert not sung


def test_resume_is_exact(crowd: Path, small: Callable[..., Experiment], sung: list[int]) -> None:
    from tests.contract.test_contract import Stop, StopAfter, numbers

    shared: dict[str, Any] = {"scenario": str(crowd), "models": ("mlp@16",), "settings": {"together": "auto"}}
    made = [small("fedavg", name, rounds=3, **shared) for name in ("one", "two")]
    run(made[0])
    with pytest.raises(Stop):
        run(made[1], observers=[StopAfter(0)])
    run(made[1].model_copy(update={"state_budget": "0"}), resume=True)
    assert len(sung) == 6
    assert numbers(made[0].out) == numbers(made[1].out)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("logistic", ["head"]),
        ("mlp@8", ["neck.1", "relu", "neck.3", "relu", "head"]),
        ("mlp", None),  # 656,810 weights: arithmetic takes the time
        ("cnn2@2", None),
        ("resnet10@4", None),
    ],
)
def test_which_models(name: str, layers: list[str] | None) -> None:
    assert dense_layers(build(name, 10)) == layers


def test_a_model_with_something_in_it_that_is_not_known() -> None:
    model = build("mlp@8", 10)
    model.neck.append(nn.Dropout(0.5))
    assert dense_layers(model) is None
    assert "together" in methods.get("fedavg").Params.model_fields
