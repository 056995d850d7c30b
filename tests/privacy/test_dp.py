"""Differential privacy of the local phase: the noise is there, the sum is right, and the budget is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import events
from torch import nn

from fedchoir import Experiment, Result, methods, run
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import prepare
from fedchoir.models import build
from fedchoir.privacy import dp
from fedchoir.utils.errors import UsageError

NOISY = {"dp_noise": 1.0, "dp_clip": 1.0}


def test_one_full_gaussian_release_against_the_exact_formula() -> None:
    """δ(ε) of a Gaussian mechanism (Balle and Wang, 2018, Theorem 8): Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)."""
    noise, delta = 2.0, 1e-5
    got = dp.epsilon(noise, 1.0, 1, delta)

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def exact(e: float) -> float:
        return phi(0.5 / noise - e * noise) - math.exp(e) * phi(-0.5 / noise - e * noise)

    assert exact(got) <= delta * 1.001
    assert exact(got - 0.01) > delta
    # releases of σ compose to one of σ/√n
    assert dp.epsilon(5.0, 1.0, 40, delta) == pytest.approx(dp.epsilon(5.0 / math.sqrt(40), 1.0, 1, delta), rel=1e-2)


def test_epsilon_grows_with_rounds_and_shrinks_with_noise() -> None:
    params = Settings(dp_noise=1.0, local_batch=16, local_epochs=2)
    costs = [dp.spent(params, [160], rounds)[0] for rounds in range(4)]
    assert costs[0] == 0
    assert costs == sorted(costs)
    assert len(set(costs)) == 4
    more = params.model_copy(update={"dp_noise": 2.0})
    assert dp.spent(more, [160], 3)[0] < costs[3]
    assert dp.spent(params, [1600, 160], 3)[0] < dp.spent(params, [1600, 160], 3)[1]  # a small site pays more


def test_batchnorm_is_gone_and_the_model_still_speaks() -> None:
    model = build("resnet10@4", 4, image_size=16)
    dp.without_batchnorm(model)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    assert any(isinstance(m, nn.GroupNorm) for m in model.modules())
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 4)


@pytest.mark.parametrize("name", [n for n in dp.METHODS if n in methods.registry()])
def test_each_listed_method_learns_under_it_and_says_what_it_costs(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=1, models=("resnet10@4",), settings={**NOISY, "dp_noise": 0.3, "local_epochs": 1})
    run(experiment)
    told = events(experiment.out)[0]["privacy"]
    assert told["delta"] == 1e-5
    extra = methods.get(name).Params().pretrain_epochs and 2
    params = Settings(dp_noise=0.3, local_epochs=1, local_batch=16, pretrain_epochs=extra)
    assert set(told["epsilon"].values()) == set(dp.spent(params, [48], 1))


def one_client(small: Callable[..., Experiment], model: str, **settings: Any) -> tuple[Any, Any]:
    """SOLO and its first client."""
    plan = make_plan(small("solo", rounds=1, models=(model,), settings=settings))
    method, scenario, _ = prepare(plan)
    return method, LocalEngine(method, scenario, None, device=torch.device("cpu")).clients[0]


def weights(client: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in client.parameters()])


PLAIN_SGD = {"optimizer": "sgd", "local_lr": 1.0, "local_epochs": 1, "local_batch": 24, "lr_schedule": "constant"}


@pytest.mark.parametrize("model", ["resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25"])
def test_no_image_moves_the_model_by_more_than_the_clip(model: str, small: Callable[..., Experiment]) -> None:
    """Without noise, one SGD step is at most lr·clip·(images drawn)/(images expected), however large the gradients."""
    method, client = one_client(small, model, **PLAIN_SGD, dp_noise=1e-9, dp_clip=0.01)
    before = weights(client)
    method.local_update(client)
    drawn = sum(len(batch) for batch in client.private_batches.batches(range(1), {}))
    assert 0 < float((weights(client) - before).norm()) <= 0.01 * drawn / 24 * 1.001


@pytest.mark.parametrize("model", ["resnet10@4", "simple_cnn@4", "mlp"])
def test_gradients_of_single_images_add_up_to_the_plain_one(model: str, small: Callable[..., Experiment]) -> None:
    """With no noise to speak of and a clip that nothing reaches, a private step is a plain one on the images drawn."""
    method, client = one_client(small, model, **PLAIN_SGD, dp_noise=1e-12, dp_clip=1e6)
    batch = next(iter(client.private_batches.batches(range(1), {})))
    optimizer = client._optimizer("local", "sgd", 1.0, 0.0)
    before = weights(client)
    client.trainer.train(client, optimizer, method.supervised_loss, [batch])
    private = before - weights(client)
    method, client = one_client(small, model, **PLAIN_SGD, dp_noise=1e-12, dp_clip=1e6)
    method.supervised_loss(client, batch).backward()
    plain = torch.cat([p.grad.flatten() for p in client.parameters()]) * len(batch) / 24
    assert float((private - plain).norm() / plain.norm()) < 1e-4


def test_noise_has_the_size_it_should(small: Callable[..., Experiment]) -> None:
    """Of a draw without images only noise remains: standard deviation σ·clip/(images expected)."""
    method, client = one_client(small, "mlp", **PLAIN_SGD, dp_noise=3.0, dp_clip=0.5)
    empty = Batch(torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64))
    before = weights(client)
    client.trainer.train(client, client._optimizer("local", "sgd", 1.0, 0.0), method.supervised_loss, [empty])
    assert float((weights(client) - before).std()) == pytest.approx(3.0 * 0.5 / 24, rel=0.05)


def test_noise_is_the_sites_secret(small: Callable[..., Experiment]) -> None:
    """Two sites that differ in nothing but their secret end with different models; one secret gives one model."""

    def trained(secret: str) -> torch.Tensor:
        method, client = one_client(small, "mlp", **NOISY, local_epochs=1)
        client.secret = secret
        method.local_update(client)
        return weights(client)

    assert torch.equal(trained("a"), trained("a"))
    assert not torch.equal(trained("a"), trained("b"))


def test_the_run_stops_within_its_budget(small: Callable[..., Experiment]) -> None:
    probe = Settings(dp_noise=1.0, local_batch=16, local_epochs=1)
    budget = (dp.spent(probe, [48], 2)[0] + dp.spent(probe, [48], 3)[0]) / 2
    settings = {**NOISY, "local_epochs": 1, "dp_epsilon": budget}
    experiment = small("fedmd", rounds=6, models=("mlp",), settings=settings)
    result: Result = run(experiment)
    assert result.rounds == 2
    assert max(events(experiment.out)[-1]["privacy"]["epsilon"].values()) <= budget
    with pytest.raises(UsageError, match="the first round would exceed it"):
        run(small("fedmd", "none", rounds=6, models=("mlp",), settings={**settings, "dp_epsilon": 0.01}))


@pytest.mark.parametrize(("name", "settings"), [("fedprox", {}), ("moon", {}), ("fccl+", {"regulariser": "ewc"})])
def test_methods_without_a_proof_are_refused(
    name: str, settings: dict[str, Any], small: Callable[..., Experiment]
) -> None:
    with pytest.raises(UsageError, match=r"dp_noise = 1 is not possible with"):
        run(small(name, settings={**NOISY, **settings}))
