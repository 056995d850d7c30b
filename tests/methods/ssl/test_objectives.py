"""BYOL, SimSiam and SimCLR against their equations."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from lightly.utils.scheduler import cosine_schedule
from tests.methods.ssl.one_client import one_client
from torch._subclasses.fake_tensor import FakeTensorMode

from fedchoir.core.training import Batch
from fedchoir.methods.ssl.objectives import Target, online_parameters
from fedchoir.models import build
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


def views(client: Any, count: int = 6) -> Batch:
    draw = torch.Generator().manual_seed(1)
    one, two = torch.randn(2, count, 3, 16, 16, generator=draw)
    return Batch(one, client.private.labels[:count], {"view2": two})


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=1, keepdim=True)


def test_byol_is_the_squared_distance_of_unit_vectors_in_both_orders() -> None:
    method, client = one_client()
    batch = views(client)
    loss = method.local_loss(client, batch)
    parts = client.modules

    def predict(x: torch.Tensor) -> torch.Tensor:
        return unit(parts["predictor"](parts["projector"](parts["calibration"](client.model.features(x)))))

    def target(x: torch.Tensor) -> torch.Tensor:
        encoder, calibration, projector = parts["target"].network
        return unit(projector(calibration(encoder.neck(encoder.trunk(x)))))

    one, two = batch.inputs, batch["view2"]
    expected = ((predict(one) - target(two)) ** 2).sum(1) + ((predict(two) - target(one)) ** 2).sum(1)
    torch.testing.assert_close(loss, expected.mean())


def test_no_gradient_step_lengthes_the_target_and_the_optimiser_does_not_know_it() -> None:
    method, client = one_client()
    method.local_loss(client, views(client)).backward()
    target = list(client.modules["target"].parameters())
    assert target
    assert all(p.grad is None and not p.requires_grad for p in target)
    assert {id(p) for p in target}.isdisjoint({id(p) for p in client.parameters()})
    learned = [*online_parameters(client), *client.modules["predictor"].parameters()]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)


def test_the_target_starts_as_the_online_network_and_follows_every_step() -> None:
    """The exponential mean, written out: one number of the target per step of the optimiser."""
    method, client = one_client(target_momentum=0.9, target_schedule="constant")
    slow = next(client.modules["target"].parameters())
    fast = online_parameters(client)[0]
    assert torch.equal(slow, fast)
    expected = slow.clone()
    seen = 0
    follow = method.objective.after_step

    def spy(c: Any) -> None:
        nonlocal expected, seen
        expected, seen = 0.9 * expected + 0.1 * fast.detach(), seen + 1
        follow(c)

    method.objective.after_step = spy
    method.local_update(client)
    assert seen == client.steps_per_epoch() == 3
    torch.testing.assert_close(slow, expected)
    assert not torch.equal(slow, fast)


def test_the_momentum_schedule_is_lightlys() -> None:
    model = build("mlp@4", 2, InputSpec.image(16))
    target = Target(model, torch.nn.Identity(), torch.nn.Identity())
    ours = []
    for _ in range(12):
        ours.append(target.momentum(0.9, 10).item())
        target.update([*model.trunk.parameters(), *model.neck.parameters()], 0.9, 10)
    theirs = [cosine_schedule(min(step, 9), 10, 0.9, 1.0) for step in range(12)]
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_following_needs_no_value_on_the_host() -> None:
    """A fake tensor has no values: a captured step can follow the schedule."""
    model = build("mlp@4", 2, InputSpec.image(16))
    target = Target(model, torch.nn.Identity(), torch.nn.Identity())
    online = [*model.trunk.parameters(), *model.neck.parameters()]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        target._apply(lambda t: mode.from_tensor(t))
        target.update([mode.from_tensor(p) for p in online], 0.9, 10)


def test_simsiam_meets_the_other_view_held_fixed() -> None:
    method, client = one_client(objective="simsiam")
    batch = views(client)
    z1, z2 = (torch.randn(6, 8, generator=torch.Generator().manual_seed(s)).requires_grad_() for s in (1, 2))
    loss = method.objective.loss(client, batch, z1, z2)
    project, predict = client.modules["projector"], client.modules["predictor"]
    y1, y2 = project(z1), project(z2)
    cosines = [(unit(predict(a)) * unit(b.detach())).sum(1) for a, b in ((y1, y2), (y2, y1))]
    torch.testing.assert_close(loss, -(cosines[0] + cosines[1]).mean() / 2)
    assert "target" not in client.modules


def test_simclr_has_a_projector_alone_and_rewards_agreement() -> None:
    method, client = one_client(objective="simclr")
    assert set(client.modules) == {"calibration", "projector"}
    z = 3 * torch.eye(6, 8)
    together = method.objective.loss(client, views(client), z, z)
    assert together < method.objective.loss(client, views(client), z, z.flip(0))


def test_a_linear_projector_leaves_the_calibrated_features_as_they_are() -> None:
    _, client = one_client(projector="linear")
    z = torch.randn(6, 8)
    assert torch.equal(client.modules["projector"](z), z)


@pytest.mark.parametrize("objective", ["byol", "simsiam", "simclr"])
def test_a_few_epochs_lower_the_loss(objective: str) -> None:
    method, client = one_client(objective=objective, local_epochs=12, local_lr=0.05, knn=0)
    method.params = method.params.model_copy(update={"local_epochs": 1})
    method.local_update(client)
    before = client.report()["local_loss"]
    method.train(client, 10, "local")
    client.report()
    method.train(client, 1, "local")
    assert client.report()["local_loss"] < before


def test_without_lightly_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "lightly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightly", None)
    with pytest.raises(UsageError, match=r"^self-supervised methods need lightly: pip install 'fedchoir\[ssl\]'$"):
        one_client()
