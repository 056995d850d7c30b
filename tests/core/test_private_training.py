"""DP-SGD in the local phase: gradients are clipped, noise has the right size, and the cost is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import events

from fedchoir import Experiment, Method, methods, run
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.private_training import affordable_rounds, private_steps, spent
from fedchoir.core.training import Batch
from fedchoir.methods.fccl_plus import FCCLPlus
from fedchoir.methods.fedavg import FedAvg
from fedchoir.privacy.noise import SecureRandom
from fedchoir.utils.errors import UsageError

NOISY = {"dp_noise": 1.0, "dp_clip": 1.0}
SUPPORTED = ["ds-fl", "fccl", "fccl+", "fedavg", "fedbn", "feddf", "fedet", "fedmd", "fedntd", "lg-fedavg", "solo"]
"""Methods for which it was checked that DP-SGD bounds what leaves a client."""


# -- accounting --------------------------------------------------------------------------------------------------------


def accounted(name: str = "fedmd", rounds: int = 6, **settings: Any) -> Method:
    """A method with two clients, without data."""
    cls = methods.get(name)
    clients = tuple(ClientInfo(f"c{k}", "mlp", 160, 1, "d") for k in range(2))
    return cls(cls.Params(**settings), FederationSpec(("a", "b"), clients, rounds=rounds, seed=0, public_size=8))


def test_epsilon_grows_with_rounds_and_shrinks_with_noise() -> None:
    params = accounted(dp_noise=1.0, local_batch=16, local_epochs=2)
    costs = [spent(params, [160], rounds)[0] for rounds in range(4)]
    assert costs[0] == 0
    assert costs == sorted(costs)
    assert len(set(costs)) == 4
    more = accounted(dp_noise=2.0, local_batch=16, local_epochs=2)
    assert spent(more, [160], 3)[0] < costs[3]
    assert spent(params, [1600, 160], 3)[0] < spent(params, [1600, 160], 3)[1]  # a small site pays more


def test_steps_are_those_of_pretraining_and_of_every_round() -> None:
    params = accounted(local_batch=16, local_epochs="2,5", pretrain_epochs=3)
    assert [private_steps(params, k, 33, 4) for k in (0, 1)] == [3 * (3 + 4 * 2), 3 * (3 + 4 * 5)]
    assert private_steps(params, 0, 33, 0) == 0


def test_affordable_rounds_are_the_most_within_the_budget() -> None:
    params = accounted(**NOISY, local_batch=16, local_epochs=1)
    costs = [max(spent(params, [48, 100], r)) for r in (2, 3)]
    limited = accounted(**NOISY, local_batch=16, local_epochs=1, dp_epsilon=sum(costs) / 2)
    assert affordable_rounds(limited, [48, 100], 6) == 2
    assert affordable_rounds(limited, [48, 100], 1) == 1
    assert affordable_rounds(params, [48, 100], 6) == 6  # no budget, no limit
    assert affordable_rounds(accounted(**NOISY, local_batch=16, dp_epsilon=0.001), [48], 6) == 0


@pytest.mark.parametrize("pretrain", [0, 3])
def test_solo_costs_what_its_epochs_cost_however_they_are_given(pretrain: int) -> None:
    """The review found 5.0 for ``epochs = 200``, and 116 for the same training by ``local_epochs``."""
    shared = {**NOISY, "local_batch": 16, "pretrain_epochs": pretrain}
    total = accounted("solo", rounds=10, epochs=200, local_epochs=1, **shared)
    each = accounted("solo", rounds=10, local_epochs=20, **shared)
    assert [spent(total, [160, 48], r) for r in range(4)] == [spent(each, [160, 48], r) for r in range(4)]
    assert spent(total, [160], 10)[0] > 4 * spent(accounted("solo", rounds=10, local_epochs=1, **shared), [160], 10)[0]
    limit = spent(each, [160], 3)[0] * 1.01
    for method in (total, each):
        method.params = method.params.model_copy(update={"dp_epsilon": limit})
        assert affordable_rounds(method, [160], 10) == 3
    uneven = accounted("solo", rounds=4, epochs=10, **shared)
    assert [uneven.private_epochs(0, r) for r in range(5)] == [pretrain + n for n in (0, 2, 5, 7, 10)]


# -- which methods -----------------------------------------------------------------------------------------------------


def test_the_methods_that_support_dp() -> None:
    assert [name for name, cls in methods.registry().items() if cls.supports_dp] == SUPPORTED


@pytest.mark.parametrize("name", SUPPORTED)
def test_each_of_them_runs_and_reports_its_epsilon(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=1, models=("resnet10@4",), settings={**NOISY, "dp_noise": 0.3, "local_epochs": 1})
    result = run(experiment)
    privacy = events(experiment)[0]["privacy"]
    assert privacy["delta"] == 1e-5
    pretrain = result.settings["pretrain_epochs"]
    params = accounted("fedmd", dp_noise=0.3, local_epochs=1, local_batch=16, pretrain_epochs=pretrain)
    assert set(privacy["epsilon"].values()) == set(spent(params, [48], 1))


@pytest.mark.parametrize(("name", "settings"), [("fedprox", {}), ("moon", {}), ("fccl+", {"regulariser": "ewc"})])
def test_other_methods_are_refused(name: str, settings: dict[str, Any], small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match=r"dp_noise = 1 is not possible with"):
        run(small(name, settings={**NOISY, **settings}))


def test_support_is_never_inherited_and_a_plugin_can_state_it() -> None:
    """A subclass may add a loss or a payload for which nothing was checked: it has to state its support itself."""

    class Silent(FedAvg):
        pass

    class Stated(FedAvg):
        supports_dp = True

    class Below(Stated):
        pass

    assert FedAvg.supports_dp
    assert [cls.supports_dp for cls in (Method, Silent, Stated, Below)] == [False, False, True, False]
    params = FedAvg.Params(dp_noise=1.0)
    assert Stated.dp_obstacle(params) == ""
    assert "not a function of single samples" in Silent.dp_obstacle(params)


def test_an_obstacle_may_depend_on_the_options() -> None:
    assert FCCLPlus.dp_obstacle(FCCLPlus.Params()) == ""
    assert "EWC" in FCCLPlus.dp_obstacle(FCCLPlus.Params(regulariser="ewc"))


# -- one step ----------------------------------------------------------------------------------------------------------


def solo_client(
    small: Callable[..., Experiment], model: str, device: str = "cpu", **settings: Any
) -> tuple[Any, Client]:
    """The method SOLO and its first client."""
    harness = FederationHarness(small("solo", rounds=1, models=(model,), settings=settings), device)
    return harness.method, harness.clients[0]


def weights(client: Client) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in client.parameters()])


PLAIN_SGD = {"optimizer": "sgd", "local_lr": 1.0, "local_epochs": 1, "local_batch": 24, "lr_schedule": "constant"}


def local_optimizer(client: Client) -> torch.optim.Optimizer:
    return client.trainer.optimizer(client, "local", "sgd", lr=1.0, weight_decay=0.0, momentum=0.0)


@pytest.mark.parametrize("model", ["resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25"])
def test_no_image_moves_the_model_by_more_than_the_clip(model: str, small: Callable[..., Experiment]) -> None:
    """Without noise, one SGD step is at most lr·clip·(images drawn)/(images expected), however large the gradients."""
    method, client = solo_client(small, model, **PLAIN_SGD, dp_noise=1e-9, dp_clip=0.01)
    before = weights(client)
    method.local_update(client)
    drawn = sum(len(batch) for batch in client.private_batches.batches(range(1), {}))
    assert 0 < float((weights(client) - before).norm()) <= 0.01 * drawn / 24 * 1.001


@pytest.mark.parametrize("model", ["resnet10@4", "simple_cnn@4", "mlp"])
def test_gradients_of_single_images_add_up_to_the_plain_one(model: str, small: Callable[..., Experiment]) -> None:
    """With negligible noise and a clip that nothing reaches, a private step is a plain one on the images drawn."""
    method, client = solo_client(small, model, **PLAIN_SGD, dp_noise=1e-12, dp_clip=1e6)
    batch = next(iter(client.private_batches.batches(range(1), {})))
    before = weights(client)
    client.trainer.train(client, local_optimizer(client), method.supervised_loss, [batch])
    private = before - weights(client)
    method, client = solo_client(small, model, **PLAIN_SGD, dp_noise=1e-12, dp_clip=1e6)
    method.supervised_loss(client, batch).backward()
    plain = torch.cat([p.grad.flatten() for p in client.parameters() if p.grad is not None]) * len(batch) / 24
    assert float((private - plain).norm() / plain.norm()) < 1e-4


def test_the_noise_has_the_right_size(small: Callable[..., Experiment]) -> None:
    """A draw without images leaves only noise: standard deviation σ·clip/(images expected)."""
    method, client = solo_client(small, "mlp", **PLAIN_SGD, dp_noise=3.0, dp_clip=0.5)
    empty = Batch(torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64))
    before = weights(client)
    client.trainer.train(client, local_optimizer(client), method.supervised_loss, [empty])
    assert float((weights(client) - before).std()) == pytest.approx(3.0 * 0.5 / 24, rel=0.05)


def test_a_real_site_never_repeats_its_noise(small: Callable[..., Experiment]) -> None:
    """A simulation repeats its noise, a real site does not, even in the same round of a run with the same seed."""

    def trained(real: bool) -> torch.Tensor:
        method, client = solo_client(small, "mlp", **NOISY, local_epochs=1)
        client.secure_random = SecureRandom() if real else None
        method.local_update(client)
        return weights(client)

    assert torch.equal(trained(real=False), trained(real=False))
    assert not torch.equal(trained(real=True), trained(real=True))


def test_the_noise_of_a_real_site_has_the_declared_size(small: Callable[..., Experiment]) -> None:
    method, client = solo_client(small, "mlp", **PLAIN_SGD, dp_noise=3.0, dp_clip=0.5)
    client.secure_random = SecureRandom()
    empty = Batch(torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64))
    before = weights(client)
    client.trainer.train(client, local_optimizer(client), method.supervised_loss, [empty])
    assert float((weights(client) - before).std()) == pytest.approx(3.0 * 0.5 / 24, rel=0.05)


@pytest.mark.parametrize("real", [False, True], ids=["simulation", "real site"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_noise_reaches_the_model_on_its_device(device: str, real: bool, small: Callable[..., Experiment]) -> None:
    """The review found that noise on CUDA came from a CPU generator, which fails there."""
    method, client = solo_client(small, "mlp", device, **PLAIN_SGD, dp_noise=3.0, dp_clip=0.5)
    if real:
        client.secure_random = SecureRandom()
    first = next(iter(client.private_batches.batches(range(1), {})))
    empty = Batch(first.inputs[:0], first.labels[:0])
    before = weights(client)
    client.trainer.train(client, local_optimizer(client), method.supervised_loss, [empty])
    moved = weights(client) - before
    assert moved.device.type == device
    assert float(moved.std()) == pytest.approx(3.0 * 0.5 / 24, rel=0.05)
    method.local_update(client)  # a whole phase, with samples
    assert torch.isfinite(weights(client)).all()


@pytest.mark.parametrize("real", [False, True], ids=["simulation", "real site"])
def test_noise_is_moved_to_the_device_of_the_gradients(real: bool, small: Callable[..., Experiment]) -> None:
    """The same without a GPU: tensors of the device "meta" accept none from the CPU, either."""
    _, client = solo_client(small, "mlp", **PLAIN_SGD, dp_noise=3.0, dp_clip=0.5)
    if real:
        client.secure_random = SecureRandom()
    client.model.to("meta")
    optimizer: Any = local_optimizer(client)
    for p in optimizer.params:
        p.summed_grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match="device"):
        _ = optimizer.params[0].summed_grad + torch.ones(optimizer.params[0].shape)
    optimizer.add_noise()
    assert {p.grad.device.type for p in optimizer.params} == {"meta"}


def test_steps_on_public_samples_have_no_noise(small: Callable[..., Experiment]) -> None:
    _, client = solo_client(small, "mlp", **NOISY)
    optimizer = client.trainer.optimizer(client, "public", "sgd", lr=1.0, weight_decay=0.0, momentum=0.0)
    assert type(optimizer) is torch.optim.SGD


def test_a_run_stops_within_its_budget(small: Callable[..., Experiment]) -> None:
    probe = accounted(**NOISY, local_batch=16, local_epochs=1)
    budget = (spent(probe, [48], 2)[0] + spent(probe, [48], 3)[0]) / 2
    settings = {**NOISY, "local_epochs": 1, "dp_epsilon": budget}
    experiment = small("fedmd", rounds=6, models=("mlp",), settings=settings)
    assert run(experiment).rounds == 2
    assert max(events(experiment)[-1]["privacy"]["epsilon"].values()) <= budget
    with pytest.raises(UsageError, match="the first round would exceed it"):
        run(small("fedmd", "none", rounds=6, models=("mlp",), settings={**settings, "dp_epsilon": 0.01}))
