"""The eager trainer: one step per batch, the mean loss, no gradients left behind."""

from __future__ import annotations

import pytest
import torch
from tests.core.example_client import loss, make_client
from tests.helpers import equal

from fedchoir.core.training import Batch, EagerTrainer, ParameterGroup, new_optimizer


def test_a_batch_gives_its_targets_by_name() -> None:
    batch = Batch(torch.zeros(3, 1), torch.zeros(3), {"logits": torch.ones(3, 2)})
    assert len(batch) == 3
    assert torch.equal(batch["logits"], torch.ones(3, 2))
    with pytest.raises(KeyError, match="similarity"):
        batch["similarity"]


def test_one_step_per_batch_and_the_mean_of_their_losses() -> None:
    client, trainer = make_client(), EagerTrainer()
    batches = list(client.private_batches.batches(range(1), {}))
    optimizer = trainer.optimizer(client, "local", "sgd", lr=0.1, weight_decay=0.0, momentum=0.0)
    values: list[float] = []

    def recorded(k: object, batch: Batch) -> torch.Tensor:
        value = loss(client, batch)
        values.append(value.item())
        return value

    mean = trainer.train(client, optimizer, recorded, batches)
    assert len(values) == len(batches) == 3
    assert mean.item() == pytest.approx(sum(values) / 3)
    assert all(p.grad is None for p in client.parameters())


def test_no_batches_are_no_steps() -> None:
    client, trainer = make_client(), EagerTrainer()
    before = client.snapshot()
    optimizer = trainer.optimizer(client, "local", "adam", lr=0.1, weight_decay=0.0, momentum=0.0)
    assert trainer.train(client, optimizer, loss, []).item() == 0
    assert equal(before, client.snapshot())


@pytest.mark.parametrize("algorithm", ["adam", "sgd"])
def test_optimisers_are_those_of_torch(algorithm: str) -> None:
    """The fused step against torch's plain one, with weight decay and momentum."""
    torch.manual_seed(0)
    ours, plain = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.01}
    momentum = {"momentum": 0.9} if algorithm == "sgd" else {}
    one = new_optimizer(algorithm, [ParameterGroup([ours])], **{"momentum": 0.9, **options})
    two = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[algorithm]([plain], **options, **momentum)
    for p, optimizer in ((ours, one), (plain, two)):
        for _ in range(3):
            optimizer.zero_grad()
            p.square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours, plain)


def test_predictions_have_no_shortcut_on_the_cpu() -> None:
    client, trainer = make_client(), EagerTrainer()
    x = torch.zeros(2, 3, 16, 16)
    client.model.eval()
    with torch.no_grad():
        assert all(map(torch.equal, trainer.forward(client, x), client.features_and_logits(x)))
    function = torch.nn.Identity()
    assert trainer.accelerated(function) is function


@pytest.mark.parametrize("algorithm", ["adam", "sgd"])
def test_a_group_has_its_own_learning_rate(algorithm: str) -> None:
    """Each group moves as it would alone with its rate."""
    factors = (0.1, 1.0)
    together = [torch.nn.Parameter(torch.arange(4.0)) for _ in factors]
    groups = [ParameterGroup([p], factor) for p, factor in zip(together, factors, strict=True)]
    optimizers = [new_optimizer(algorithm, groups, lr=0.5, weight_decay=0.01, momentum=0.9)]
    alone = [torch.nn.Parameter(torch.arange(4.0)) for _ in factors]
    for p, factor in zip(alone, factors, strict=True):
        rate = 0.5 * factor
        optimizers.append(new_optimizer(algorithm, [ParameterGroup([p])], lr=rate, weight_decay=0.01, momentum=0.9))
    for _ in range(3):
        for p in (*together, *alone):
            p.grad = 2 * p.detach()
        for optimizer in optimizers:
            optimizer.step()
    assert all(map(torch.equal, together, alone))
    assert not torch.equal(*together)
