"""Batches of private and public samples: order, targets, views, augmentation, Poisson sampling."""

from __future__ import annotations

import pytest
import torch
from tests.core.example_client import BATCH, loss, make_client, public_view

from fedchoir.core.actions import PublicBatch
from fedchoir.core.batches import PrivateBatches
from fedchoir.core.training import Batch


def private_batches(count: int = 20, **settings: object) -> PrivateBatches:
    return make_client(count, model="mlp", **settings).private_batches


@pytest.mark.parametrize("augment", ["none", "weak"])
def test_an_epoch_contains_every_sample_once_in_a_new_order(augment: str) -> None:
    batches = private_batches(private_augment=augment)
    rows = torch.arange(20)
    orders = [torch.cat([b["row"] for b in batches.batches(range(e, e + 1), {"row": rows})]) for e in (0, 1)]
    assert all(torch.equal(order.sort().values, rows) for order in orders)
    assert not torch.equal(*orders)
    again = torch.cat([b["row"] for b in batches.batches(range(1, 2), {"row": rows})])
    assert torch.equal(again, orders[1])  # an epoch's order depends on its number alone


def test_images_labels_and_targets_belong_together() -> None:
    batches = private_batches()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (batches.data.mean, batches.data.std))
    for batch in batches.batches(range(1), {"row": torch.arange(20), "pixels": batches.data.inputs}):
        assert torch.equal(batch.labels, batches.data.labels[batch["row"]])
        torch.testing.assert_close(batch.inputs * std + mean, batch["pixels"].float() / 255)


def test_a_function_as_target_sees_the_augmented_images() -> None:
    for batch in private_batches(private_augment="weak").batches(range(1), {"copy": lambda x: x.clone()}):
        assert torch.equal(batch["copy"], batch.inputs)


def test_a_last_batch_of_one_image_is_skipped() -> None:
    assert [len(b) for b in private_batches(17).batches(range(1), {})] == [8, 8]
    seen: list[int] = []
    make_client(count=17).train(lambda k, batch: seen.append(len(batch)) or loss(k, batch), epochs=1)
    assert seen == [8, 8]
    assert [len(b) for b in private_batches(1).batches(range(1), {})] == [1]  # but a single image is trained on


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 10, 16, 17, 24])
def test_steps_per_epoch_are_the_batches_of_an_epoch(count: int) -> None:
    batches = private_batches(count)
    assert batches.steps_per_epoch() == len(list(batches.batches(range(1), {})))


def test_views_are_different_augmentations_of_the_same_samples() -> None:
    batches = private_batches(private_augment="weak")
    first = next(iter(batches.batches(range(1), {}, views=3)))
    assert set(first.targets) == {"view2", "view3"}
    assert first["view2"].shape == first.inputs.shape
    assert not torch.equal(first["view2"], first.inputs)
    assert not torch.equal(first["view2"], first["view3"])
    alone = next(iter(batches.batches(range(1), {})))
    assert torch.equal(alone.inputs, first.inputs)  # further views do not change the first one


def test_chunks_are_the_samples_in_order_without_augmentation() -> None:
    augmented, plain = private_batches(private_augment="weak"), private_batches()
    chunks = list(augmented.chunks(6))
    assert [len(x) for x, _ in chunks] == [6, 6, 6, 2]
    assert torch.equal(torch.cat([y for _, y in chunks]), plain.data.labels)
    assert torch.equal(torch.cat([x for x, _ in chunks]), torch.cat([x for x, _ in plain.chunks(20)]))


def test_under_dp_each_sample_is_drawn_with_the_same_probability() -> None:
    batches = private_batches(400, dp_noise=1.0, local_batch=40)
    sizes = [len(b) for b in batches.batches(range(20), {})]
    assert len(sizes) == 20 * 10
    assert len(set(sizes)) > 5
    assert sum(sizes) / len(sizes) == pytest.approx(40, abs=1.5)  # 3.5 standard deviations of the mean
    rows = torch.cat([b["row"] for b in batches.batches(range(20), {"row": torch.arange(400)})])
    assert rows.bincount(minlength=400).min() > 0
    assert [len(b) for b in batches.batches(range(20), {})] == sizes  # derived from the seed in a simulation


@pytest.mark.parametrize("augment", ["none", "weak"])
def test_private_images_are_recolored_as_pixels_each_batch_with_its_own_draw(augment: str) -> None:
    client = make_client(private_augment=augment)
    plain = list(client.private_batches.batches(range(2), {}))
    received: list[torch.Tensor] = []
    drawn: list[float] = []
    seen: list[Batch] = []

    def grey(pixels: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        received.append(pixels)
        drawn.append(torch.rand(1, generator=draw).item())
        return torch.full_like(pixels, 0.5)

    client.train(lambda k, batch: seen.append(batch) or loss(k, batch), recolor=grey)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (client.private.mean, client.private.std))
    assert len(set(drawn)) == len(seen) == 6
    for pixels, before, batch in zip(received, plain, seen, strict=True):
        torch.testing.assert_close(pixels, before.inputs * std + mean)
        torch.testing.assert_close(batch.inputs, ((0.5 - mean) / std).expand_as(pixels))
        assert torch.equal(batch.labels, before.labels)


# -- public samples ----------------------------------------------------------------------------------------------------


def test_public_batches_of_a_pass_cover_the_set_and_each_pass_has_its_own_order() -> None:
    view = public_view(augment="none")
    whole = view.samples(PublicBatch(0, 0, 0, 0, 12))
    halves = torch.cat([view.samples(PublicBatch(0, 0, n, 6 * n, 6)) for n in range(2)])
    assert torch.equal(whole, halves)
    other = view.samples(PublicBatch(0, 1, 0, 0, 12))
    assert not torch.equal(whole, other)
    assert {tuple(x.flatten().tolist()) for x in whole} == {tuple(x.flatten().tolist()) for x in other}


def test_public_views_depend_on_the_seed_and_not_on_what_was_read_before() -> None:
    one, two = public_view(), public_view()
    one.samples(PublicBatch(3, 0, 0, 0, 4))
    assert torch.equal(one.samples(BATCH), two.samples(BATCH))
    assert not torch.equal(public_view(seed=1).samples(BATCH), two.samples(BATCH))


def test_public_images_are_computed_once_a_round() -> None:
    view = public_view()
    first = view.samples(BATCH)
    assert view.samples(BATCH) is first
    view.samples(PublicBatch(1, 0, 0, 0, 8))
    assert view.samples(BATCH) is not first
    assert torch.equal(view.samples(BATCH), first)
