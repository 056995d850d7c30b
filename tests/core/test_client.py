"""A client: training, public phase, stored models, reports, state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core.example_client import BATCH, loss, make_client
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.actions import PublicBatch
from fedchoir.core.client import Client
from fedchoir.core.teachers import Teacher
from fedchoir.core.training import Batch, EagerTrainer


def test_training_equals_a_plain_loop() -> None:
    """`Client.train` against a loop written out by hand: same batches, same optimiser, same weights."""
    one, two = make_client(), make_client()
    one.phase = two.phase = "practise"
    one.train(loss)
    optimizer = torch.optim.Adam(two.model.parameters(), lr=1e-3)
    two.model.train()
    for epoch in range(2):
        order = torch.randperm(20, generator=two.generator("private order", epoch))
        for index in order.split(8):
            pixels = two.private.inputs[index].float() / 255
            mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (two.private.mean, two.private.std))
            optimizer.zero_grad()
            cross_entropy(two.model((pixels - mean) / std), two.private.labels[index]).backward()
            optimizer.step()
    for (name, a), b in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_epochs_of_a_later_call_continue_the_order_of_batches() -> None:
    """Two calls with ``first`` see the batches of one call: a phase may train in several parts."""
    whole, parts = make_client(), make_client()
    seen: dict[str, list[torch.Tensor]] = {"whole": [], "parts": []}

    def record(name: str) -> Any:
        return lambda c, batch: seen[name].append(batch.labels) or loss(c, batch)

    whole.train(record("whole"), epochs=2)
    parts.train(record("parts"), epochs=1)
    parts.train(record("parts"), epochs=1, first=1)
    assert all(torch.equal(a, b) for a, b in zip(seen["whole"], seen["parts"], strict=True))


def test_zero_epochs_change_and_report_nothing() -> None:
    client = make_client()
    before = client.snapshot()
    client.train(loss, epochs=0)
    assert equal(before, client.snapshot())
    assert client.report() == {}


def test_the_hook_runs_after_every_step() -> None:
    steps: list[int] = []
    make_client().train(loss, after_step=lambda client: steps.append(client.index))
    assert steps == [0] * 6


def test_the_learning_rate_falls_over_the_rounds() -> None:
    client = make_client(local_lr=0.1, optimizer="sgd")
    client.round = 2
    rates: list[float] = []

    class Watch(EagerTrainer):
        def train(self, k: Client, optimizer: torch.optim.Optimizer, *rest: Any) -> torch.Tensor:
            rates.append(optimizer.param_groups[0]["lr"])
            return torch.zeros(())

    client.trainer = Watch()
    client.train(loss)
    assert rates == [pytest.approx(0.1 * (1 - 0.9 * 2 / 4))]


# -- public phase ------------------------------------------------------------------------------------------------------


def test_public_outputs_change_no_weights() -> None:
    client = make_client()
    before = client.snapshot()
    h, z = client.public_outputs(BATCH)
    after = client.snapshot()
    assert [n for n in before if not torch.equal(before[n], after[n]) and "num_batches" not in n] == []
    assert h.shape == (8, client.model.feature_dim)
    assert z.shape == (8, 4)
    assert not z.requires_grad


def test_the_loss_of_the_public_step_sees_what_was_shared() -> None:
    """The aggregate contains exactly what the first loss is computed from."""
    client = make_client()
    _, shared = client.public_outputs(BATCH)
    seen: list[torch.Tensor] = []

    def spy(k: Client, batch: Batch) -> torch.Tensor:
        z = k.logits(batch.inputs)
        seen.append(z.detach().clone())
        return z.square().mean()

    client.public_step(BATCH, spy)
    torch.testing.assert_close(seen[0], shared, rtol=1e-5, atol=1e-6)


def test_targets_of_a_public_step_come_with_the_batch() -> None:
    client, target = make_client(), torch.zeros(8, 4)
    client.public_step(BATCH, lambda k, batch: (k.logits(batch.inputs) - batch["logits"]).abs().mean(), logits=target)
    assert client.report().keys() == {"public_loss"}


def test_all_clients_see_the_same_public_images() -> None:
    one, two = make_client(), make_client(model="mlp", index=1)
    assert torch.equal(one.public_samples(BATCH), two.public_samples(BATCH))
    assert not torch.equal(one.public_samples(BATCH), one.public_samples(PublicBatch(1, 0, 0, 0, 8)))


def noisy(pixels: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return (pixels + 0.1 * torch.rand(pixels.shape, generator=draw)).clamp(0, 1)


def test_recolored_public_images_are_the_same_for_all_clients_and_in_both_halves_of_the_phase() -> None:
    one, two = make_client(), make_client(model="mlp", index=1)
    view = one.public_samples(BATCH, noisy)
    assert torch.equal(view, two.public_samples(BATCH, noisy))
    assert not torch.equal(view, one.public_samples(BATCH))
    assert not torch.equal(view, one.public_samples(PublicBatch(1, 0, 0, 0, 8), noisy))
    seen: list[torch.Tensor] = []
    one.public_step(BATCH, lambda k, batch: seen.append(batch.inputs) or k.logits(batch.inputs).mean(), noisy)
    assert torch.equal(seen[0], view)
    with one.batch_stats_frozen():
        expected = one.features_and_logits(view)[1]
    torch.testing.assert_close(one.public_outputs(BATCH, noisy)[1], expected)


def test_a_client_without_a_public_set_names_itself() -> None:
    client = make_client()
    client.public = None
    with pytest.raises(RuntimeError, match="client a has no public set"):
        client.public_samples(BATCH)


def test_the_public_optimiser_lives_for_a_round_or_for_a_batch() -> None:
    square = lambda k, b: k.logits(b.inputs).square().mean()  # noqa: E731
    client = make_client()
    client.public_step(BATCH, square)
    first = client.optimizers["public"]
    client.public_step(BATCH, square)
    assert client.optimizers["public"] is first
    client.begin(1)
    assert client.optimizers == {}
    renewed = make_client(public_optimizer_lifetime="batch")
    renewed.public_step(BATCH, square)
    first = renewed.optimizers["public"]
    renewed.public_step(BATCH, square)
    assert renewed.optimizers["public"] is not first


# -- frozen models as targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["none", "weak"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_teachers_targets_are_the_frozen_models_outputs(mode: Any, augment: str) -> None:
    client = make_client(private_augment=augment)
    weights = client.snapshot()
    frozen = client.frozen_copy(weights)
    gaps: list[float] = []

    def spy(k: Client, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            expected = frozen.train(mode == "train")(batch.inputs)
        gaps.append((batch["teacher"] - expected).abs().max().item())
        return loss(k, batch)

    client.train(spy, teacher=Teacher(weights, batchnorm=mode))
    assert max(gaps) < 1e-4


def test_teachers_do_not_change() -> None:
    client = make_client()
    weights = client.snapshot()
    kept = {n: t.clone() for n, t in weights.items()}
    client.train(loss, teacher=Teacher(weights, batchnorm="train"))
    assert all(torch.equal(kept[n], weights[n]) for n in kept if "num_batches" not in n)
    assert not equal(kept, client.snapshot())


def test_features_as_targets() -> None:
    client = make_client()
    h = client.predict_private("features")
    assert h.shape == (20, client.model.feature_dim)
    seen: list[torch.Tensor] = []
    client.train(
        lambda k, b: seen.append(b["old"]) or loss(k, b), epochs=1, old=Teacher(client.snapshot(), "features"), row=h
    )
    assert seen[0].shape == (8, client.model.feature_dim)


def test_a_frozen_copy_shares_the_weights_and_has_no_gradients() -> None:
    client = make_client()
    weights = client.snapshot()
    frozen = client.frozen_copy(weights)
    assert all(t.data_ptr() == weights[n].data_ptr() for n, t in frozen.state_dict().items())
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not frozen.training
    assert all(p.requires_grad for p in client.model.parameters())


# -- reports, data and state -------------------------------------------------------------------------------------------


def test_reports_contain_mean_losses_and_values_once() -> None:
    client = make_client()
    client.train(loss)
    client.train(loss, phase="second")
    client.log_value("entropy", torch.tensor(2.0))
    assert client.trainings == 2
    report = client.report()
    assert report.keys() == {"local_loss", "second_loss", "entropy"}
    assert report["entropy"] == 2.0
    assert client.report() == {}


def test_class_counts() -> None:
    assert make_client(count=18).class_counts().tolist() == [5, 5, 4, 4]


def test_draws_depend_on_client_round_phase_and_purpose_and_on_nothing_else() -> None:
    def draw(index: int = 0, round_index: int = 0, phase: str = "a", label: str = "x") -> float:
        client = make_client(model="mlp", index=index)
        client.round, client.phase = round_index, phase
        return torch.rand(1, generator=client.generator(label)).item()

    assert draw() == draw()
    assert len({draw(), draw(index=1), draw(round_index=1), draw(phase="b"), draw(label="y")}) == 5


def test_reading_the_round_is_recorded() -> None:
    """A captured training step whose loss reads the round must be captured again in the next one."""
    client = make_client(model="mlp")
    client.round_was_read = False
    client.begin(3)
    client.round_was_read = False
    assert client.round == 3
    assert client.round_was_read


def test_the_state_of_a_client_survives_a_round_trip() -> None:
    client = make_client()
    client.memory["teacher"] = client.snapshot()
    client.memory["prototypes"] = torch.randn(4, 8)
    client.train(loss)
    flat = {n: t.clone() for n, t in client.state().items()}
    other = make_client()
    other.load(flat)
    assert equal(flat, other.state())
    assert other.nbytes == client.nbytes == sum(t.nbytes for t in flat.values())
