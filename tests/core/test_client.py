"""Clients: one training loop, targets from frozen models, still statistics, state that survives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.actions import PublicBatch
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.teachers import Teacher
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch, EagerTrainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.models import build


def images(count: int, seed: int = 0) -> ImageSet:
    g = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 16, 16), generator=g, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 4)


def client(count: int = 20, model: str = "resnet10@4", **settings: Any) -> Client:
    torch.manual_seed(0)
    chosen = Settings(**{"local_epochs": 2, "local_batch": 8, "image_size": 16, **settings})
    public = PublicSet("p", images(12, 9).images, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), (), "")
    view = PublicView(public, seed=0, kind="weak", device=torch.device("cpu"))
    return Client(0, "a", build(model, 4, image_size=16), images(count), settings=chosen, seed=0, rounds=4, public=view)


def loss(c: Client, batch: Batch) -> torch.Tensor:
    return cross_entropy(c.logits(batch.images), batch.labels)


BATCH = PublicBatch(0, 0, 0, 0, 8)


def test_fit_equals_a_plain_loop() -> None:
    """The training loop against one written out by hand: same batches, same optimiser, same weights."""
    one, two = client(), client()
    one.phase = two.phase = "practise"
    one.train(loss)
    optimizer = torch.optim.Adam(two.model.parameters(), lr=1e-3)
    two.model.train()
    for epoch in range(2):
        order = torch.randperm(20, generator=two._draw("private order", epoch))
        for index in order.split(8):
            pixels = two.private.images[index].float() / 255
            mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (two.private.mean, two.private.std))
            optimizer.zero_grad()
            cross_entropy(two.model((pixels - mean) / std), two.private.labels[index]).backward()
            optimizer.step()
    for (name, a), b in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_a_last_batch_of_one_image_is_passed_over() -> None:
    seen: list[int] = []
    c = client(count=17)
    c.train(lambda k, batch: seen.append(len(batch)) or loss(k, batch), epochs=1)
    assert seen == [8, 8]


def test_saying_learns_nothing() -> None:
    c = client()
    before = c.snapshot()
    h, z = c.public_outputs(BATCH)
    after = c.snapshot()
    moved = [n for n in before if not torch.equal(before[n], after[n]) and "num_batches" not in n]
    assert moved == []
    assert h.shape == (8, c.model.feature_dim)
    assert z.shape == (8, 4)
    assert not z.requires_grad


def test_saying_is_what_the_learning_pass_sees() -> None:
    """The consensus holds exactly what the first loss is computed from."""
    c = client()
    _, said = c.public_outputs(BATCH)
    seen: list[torch.Tensor] = []

    def spy(k: Client, batch: Batch) -> torch.Tensor:
        z = k.logits(batch.images)
        seen.append(z.detach().clone())
        return z.square().mean()

    c.public_step(BATCH, spy)
    torch.testing.assert_close(seen[0], said, rtol=1e-5, atol=1e-6)


def test_all_clients_see_the_same_public_images() -> None:
    one, two = client(), client(model="mlp")
    assert torch.equal(one.public_samples(BATCH), two.public_samples(BATCH))
    assert not torch.equal(one.public_samples(BATCH), one.public_samples(PublicBatch(1, 0, 0, 0, 8)))


def noisy(pixels: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return (pixels + 0.1 * torch.rand(pixels.shape, generator=draw)).clamp(0, 1)


def test_restyled_public_images_are_the_same_for_all_and_for_speaking_and_learning() -> None:
    one, two = client(), client(model="mlp")
    view = one.public_samples(BATCH, noisy)
    assert torch.equal(view, two.public_samples(BATCH, noisy))
    assert not torch.equal(view, one.public_samples(BATCH))
    assert not torch.equal(view, one.public_samples(PublicBatch(1, 0, 0, 0, 8), noisy))
    seen: list[torch.Tensor] = []
    one.public_step(BATCH, lambda k, batch: seen.append(batch.images) or k.logits(batch.images).mean(), noisy)
    assert torch.equal(seen[0], view)
    with one.batch_stats_frozen():
        expected = one.features_and_logits(view)[1]
    torch.testing.assert_close(one.public_outputs(BATCH, noisy)[1], expected)


@pytest.mark.parametrize("augment", ["none", "weak"])
def test_private_images_are_restyled_as_pixels_each_batch_with_its_own_draw(augment: str) -> None:
    c = client(private_augment=augment)
    plain = list(c.lessons(2))
    came: list[torch.Tensor] = []
    drawn: list[float] = []
    seen: list[Batch] = []

    def grey(pixels: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        came.append(pixels)
        drawn.append(torch.rand(1, generator=draw).item())
        return torch.full_like(pixels, 0.5)

    c.train(lambda k, batch: seen.append(batch) or loss(k, batch), recolor=grey)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (c.private.mean, c.private.std))
    assert len(set(drawn)) == len(seen) == 6
    for pixels, before, batch in zip(came, plain, seen, strict=True):
        torch.testing.assert_close(pixels, before.images * std + mean)
        torch.testing.assert_close(batch.images, ((0.5 - mean) / std).expand_as(pixels))
        assert torch.equal(batch.labels, before.labels)


@pytest.mark.parametrize("augment", ["none", "weak"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_frozen_targets_are_what_the_frozen_model_says(mode: Any, augment: str) -> None:
    c = client(private_augment=augment)
    weights = c.snapshot()
    twin = c.frozen_copy(weights)
    gaps: list[float] = []

    def spy(k: Client, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            expected = twin.train(mode == "train")(batch.images)
        gaps.append((batch["teacher"] - expected).abs().max().item())
        return loss(k, batch)

    c.train(spy, teacher=Teacher(weights, batchnorm=mode))
    assert max(gaps) < 1e-4


def test_teachers_do_not_move() -> None:
    c = client()
    weights = c.snapshot()
    kept = {n: t.clone() for n, t in weights.items()}
    c.train(loss, teacher=Teacher(weights, batchnorm="train"))
    assert all(torch.equal(kept[n], weights[n]) for n in kept if "num_batches" not in n)
    assert not equal(kept, c.snapshot())


def test_features_as_targets_and_survey() -> None:
    c = client()
    h = c.predict_private("features")
    assert h.shape == (20, c.model.feature_dim)
    seen: list[torch.Tensor] = []
    c.train(lambda k, b: seen.append(b["old"]) or loss(k, b), epochs=1, old=Teacher(c.snapshot(), "features"), row=h)
    assert seen[0].shape == (8, c.model.feature_dim)


def test_the_public_optimiser_lives_for_a_round_or_for_a_batch() -> None:
    c = client()
    square = lambda k, b: k.logits(b.images).square().mean()  # noqa: E731
    c.public_step(BATCH, square)
    first = c.optimizers["public"]
    c.public_step(BATCH, square)
    assert c.optimizers["public"] is first
    c.begin(1)
    assert c.optimizers == {}
    rebuilt = client(public_optimizer_lifetime="batch")
    rebuilt.learn(BATCH, square)
    first = rebuilt.optimizers["public"]
    rebuilt.learn(BATCH, square)
    assert rebuilt.optimizers["public"] is not first


def test_state_round_trip() -> None:
    c = client()
    c.memory["teacher"] = c.snapshot()
    c.memory["prototypes"] = torch.randn(4, 8)
    c.train(loss)
    flat = {n: t.clone() for n, t in c.state().items()}
    other = client()
    other.load(flat)
    assert equal(flat, other.state())


def test_learning_rate_falls_over_the_rounds() -> None:
    c = client(local_lr=0.1, optimizer="sgd")
    c.round = 2
    rates: list[float] = []

    class Watch(EagerTrainer):
        def train(self, k: Client, optimizer: torch.optim.Optimizer, *rest: Any) -> torch.Tensor:
            rates.append(optimizer.param_groups[0]["lr"])
            return torch.zeros(())

    c.trainer = Watch()
    c.train(loss)
    assert rates == [pytest.approx(0.1 * (1 - 0.9 * 2 / 4))]


def test_reports_carry_mean_losses_once() -> None:
    c = client()
    c.train(loss)
    assert c.report().keys() == {"local_loss"}
    assert c.report() == {}
