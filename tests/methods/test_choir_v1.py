"""Choir: what recoloring and the shared model cost and do, and what it is without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make, after
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core.actions import Exchange, Step
from fedchoir.core.training import Batch
from fedchoir.data.image.augment import augment
from fedchoir.data.image.color_transforms import color_statistics
from fedchoir.data.image.pixels import normalise
from fedchoir.losses import fntd
from fedchoir.payload import MODULE, sends
from fedchoir.utils.errors import UsageError

COLORS = 21 * 4  # bytes


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_colors_are_sent_once_and_received_every_round(harness: Make) -> None:
    batches = 4 * sum(b * 4 + b * (b - 1) for b in (16, 16, 8))
    first, second = harness("choir-v1", PLAIN, recolor="exchanged").run_rounds(2)
    assert (first["bytes_up"], second["bytes_up"]) == (3 * (batches + COLORS), 3 * batches)
    assert first["bytes_down"] == second["bytes_down"] == 3 * (batches + 3 * COLORS)


@pytest.mark.parametrize(
    ("switches", "numbers"),
    [({"use_fisl": False}, lambda b: b * 4), ({"use_fccm": False}, lambda b: b * (b - 1))],
)
def test_a_batch_costs_what_the_modules_compare(
    switches: dict[str, Any], numbers: Callable[[int], int], harness: Make
) -> None:
    (event,) = harness("choir-v1", PLAIN, recolor="none", **switches).run_rounds()
    assert event["bytes_up"] == event["bytes_down"] == 3 * 4 * sum(numbers(b) for b in (16, 16, 8))


def test_every_client_receives_all_colors(harness: Make) -> None:
    s = harness("choir-v1", PLAIN, recolor="exchanged")
    s.run_rounds()
    expected = torch.stack([color_statistics(client.private.inputs) for client in s.clients])
    for client in s.clients:
        assert torch.equal(client.stored_tensor("colors"), expected)


def test_a_client_that_was_absent_is_asked_later(harness: Make) -> None:
    """The server asks again as long as it lacks a client's colours, and forwards those it has."""
    method, spec = (s := harness("choir-v1", PLAIN, recolor="exchanged")).method, s.spec
    colors = {k: method.share_color_statistics(client) for k, client in enumerate(s.clients)}
    script = method.exchange_color_statistics(spec.round(0, method.params))
    assert isinstance(next(script), Exchange)
    step = script.send({0: colors[0], 2: colors[2]})  # client 1 did not reply
    assert isinstance(step, Step)
    assert torch.equal(step.received["colors"], torch.stack([colors[k]["colors"] for k in (0, 2)]))
    script = method.exchange_color_statistics(spec.round(1, method.params))
    assert isinstance(next(script), Exchange)
    assert len(script.send({1: colors[1]}).received["colors"]) == 3
    assert isinstance(next(method.exchange_color_statistics(spec.round(2, method.params))), Step)


def test_secure_aggregation_cannot_forward_colors(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="each client's colours"):
        run(small("choir-v1", secure=True, settings={"recolor": "exchanged"}))


# -- what it computes -------------------------------------------------------------------------------------------------


def test_pretraining_recolors_with_the_colors_known_by_then(harness: Make) -> None:
    """Wide colours from the start; exchanged ones only after the first exchange."""
    nothing = {"local_epochs": 0, "use_fccm": False, "use_fisl": False, "pretrain_epochs": 1}
    wide, exchanged, plain = (
        after(harness, "choir-v1", rounds=1, recolor=s, **nothing) for s in ("wide", "exchanged", "none")
    )
    assert equal(exchanged, plain)
    assert not equal(wide, plain)


def test_with_distillation_and_without_recoloring_it_is_fccl_plus_renormalised(harness: Make) -> None:
    still = after(harness, "choir-v1", recolor="none", private_augment="none", use_fntd=True)
    assert equal(still, after(harness, "fccl+", fntd_form="renormalised"))


def test_without_recoloring_it_is_fccl_plus_without_distillation(harness: Make) -> None:
    still = after(harness, "choir-v1", recolor="none", private_augment="none")
    assert equal(still, after(harness, "fccl+", regulariser="none"))


def test_without_any_module_it_is_solo(harness: Make) -> None:
    bare = after(harness, "choir-v1", recolor="none", private_augment="none", use_fccm=False, use_fisl=False)
    assert equal(bare, after(harness, "solo"))


def test_images_are_transformed_by_default(harness: Make) -> None:
    moved = after(harness, "choir-v1", recolor="none", use_fccm=False, use_fisl=False)
    assert equal(moved, after(harness, "solo", private_augment="affine"))


def test_recoloring_equals_the_augmentation(harness: Make) -> None:
    """The augmentation `recolor`, which every method has, makes the same images as Choir."""
    alone = harness("choir-v1", PLAIN, use_fccm=False, use_fisl=False)
    changes = [
        alone.method.recolor_transform(alone.clients[0], 0.5),
        lambda x, g: augment((x * 255).round().byte(), "recolor", g),
    ]
    pixels = alone.clients[0].private.inputs.float() / 255
    one, two = (change(pixels, torch.Generator().manual_seed(3)) for change in changes)
    torch.testing.assert_close(one, two)


def test_a_share_of_0_is_no_recoloring(harness: Make) -> None:
    nothing = after(harness, "choir-v1", recolor_share=0.0, public_recolor_share=0.0)
    assert equal(nothing, after(harness, "choir-v1", recolor="none"))
    assert not equal(nothing, after(harness, "choir-v1", public_recolor_share=0.0))
    assert not equal(nothing, after(harness, "choir-v1", recolor_share=0.0))


def test_wide_colors_need_no_exchange(harness: Make) -> None:
    (wide,) = (s := harness("choir-v1", PLAIN)).run_rounds()
    (none,) = harness("choir-v1", PLAIN, recolor="none").run_rounds()
    assert (wide["bytes_up"], wide["bytes_down"]) == (none["bytes_up"], none["bytes_down"])
    assert not equal(s.weights(), after(harness, "choir-v1", rounds=1, recolor="none"))
    assert not equal(s.weights(), after(harness, "choir-v1", rounds=1, recolor="exchanged"))


@pytest.mark.parametrize("colors", ["wide", "exchanged"])
def test_public_images_are_recolored_equally_at_all_clients(colors: str, harness: Make) -> None:
    s = harness("choir-v1", PLAIN, recolor=colors)
    s.run_rounds()
    views = [client.public_samples(s.batch(), s.method.recolor_transform(client, 0.5)) for client in s.clients]
    assert all(torch.equal(view, views[0]) for view in views)
    changed = (views[0] - s.clients[0].public_samples(s.batch())).abs().amax(dim=(1, 2, 3)) > 1e-3
    assert 2 <= int(changed.sum()) <= 14


def test_the_teacher_sees_the_original_colors(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("choir-v1", PLAIN, recolor_share=1.0, use_fntd=True)
    s.run_rounds()
    client = s.clients[0]
    seen: list[Batch] = []
    monkeypatch.setattr(client.trainer, "train", lambda c, o, loss, batches: (seen.extend(batches), torch.zeros(()))[1])
    s.method.store_teacher(client)
    s.method.local_update(client)
    plain = list(client.private_batches.batches(range(s.method.params.epochs_of(0)), {}))
    teacher = client.frozen_copy(client.stored_weights("teacher"))
    for batch, before in zip(seen, plain, strict=True):
        assert torch.equal(batch.labels, before.labels)
        torch.testing.assert_close(batch["teacher"], teacher(before.inputs))
        assert (batch.inputs - before.inputs).abs().amax(dim=(1, 2, 3)).min() > 1e-3
        torch.testing.assert_close(
            s.method.local_loss(client, batch),
            cross_entropy(z := client.logits(batch.inputs), batch.labels)
            + fntd(z, batch["teacher"], batch.labels, 3.0, "renormalised"),
        )


# -- the shared model --------------------------------------------------------------------------------------------------


def shared_models(s: FederationHarness) -> list[dict[str, torch.Tensor]]:
    return [
        {name: t.clone() for name, t in client.modules["shared_model"].state_dict().items()} for client in s.clients
    ]


def test_a_shared_model_does_not_change_the_own_models(harness: Make) -> None:
    assert equal(after(harness, "choir-v1", shared_model="simple_cnn@4"), after(harness, "choir-v1"))


def test_shared_models_start_equal_and_are_averaged(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("choir-v1", PLAIN, shared_model="resnet10@2")  # with buffers
    starts = shared_models(s)
    assert equal(starts[1:], starts[:-1])
    upload_shared_model, sent = type(s.method).upload_shared_model, []

    def spy(method: Any, client: Any) -> Any:
        sent.append({name: t.clone() for name, t in client.modules["shared_model"].state_dict().items()})
        return upload_shared_model(method, client)

    monkeypatch.setattr(type(s.method), "upload_shared_model", sends(shared_model=MODULE)(spy))
    s.run_rounds()
    for name, tensor in (ended := shared_models(s))[0].items():
        mean = sum(state[name].double() for state in sent) / 3
        torch.testing.assert_close(tensor.double(), mean.round() if "num_batches" in name else mean)
        assert "num_batches" in name or not torch.equal(sent[0][name], sent[1][name])
    assert equal(ended[1:], ended[:-1])


def test_a_shared_model_is_sent_once_and_received_twice_after_the_first_round(harness: Make) -> None:
    s = harness("choir-v1", PLAIN, shared_model="simple_cnn@4")
    plain = harness("choir-v1", PLAIN).run_rounds(2)
    size = sum(t.nbytes for t in shared_models(s)[0].values())
    more = [
        (a["bytes_up"] - b["bytes_up"], a["bytes_down"] - b["bytes_down"])
        for a, b in zip(s.run_rounds(2), plain, strict=True)
    ]
    assert more == [(3 * size, 3 * size), (3 * size, 6 * size)]


def test_an_absent_client_starts_with_the_current_shared_model(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("choir-v1", PLAIN, rounds=6, shared_model="simple_cnn@4", fraction=0.67)  # two of three
    local_update, starts = type(s.method).local_update, []

    def spy(method: Any, client: Any) -> None:
        shared = {f"shared_model/{name}": t for name, t in client.modules["shared_model"].state_dict().items()}
        starts.append((client.round, client.index, equal([shared], [method.server or shared])))
        local_update(method, client)

    monkeypatch.setattr(type(s.method), "local_update", spy)
    s.run_rounds(6)
    assert len(starts) == 12
    assert {client for _, client, _ in starts} == {0, 1, 2}
    assert all(known for _, _, known in starts)


def test_predictions_average_both_models(harness: Make) -> None:
    s = harness("choir-v1", PLAIN, shared_model="simple_cnn@4")
    (event,) = s.run_rounds()
    tests = s.engine._tests
    for client, row in zip(s.clients, event["accuracy"], strict=True):
        for test, accuracy in zip(tests, row, strict=True):
            images = normalise(test.inputs, test.mean, test.std)
            with torch.no_grad():
                both = client.model(images).double().softmax(1) + client.modules["shared_model"](
                    images
                ).double().softmax(1)
            assert accuracy == pytest.approx(100 * (both.argmax(1) == test.labels).double().mean().item())


def test_a_shared_model_works_with_secure_aggregation(small: Callable[..., Experiment]) -> None:
    changes: dict[str, Any] = {"models": PLAIN, "settings": {"shared_model": "mlp@8"}}
    plain = run(small("choir-v1", "plain", **changes))
    hidden = run(small("choir-v1", "hidden", secure=True, **changes))
    assert hidden.bytes_up > plain.bytes_up
    for one, two in zip(plain.accuracy, hidden.accuracy, strict=True):
        assert two == pytest.approx(one, abs=3.0)  # sums of rounded numbers


def test_an_unknown_shared_model_is_refused(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="unknown model 'simple_cn'; did you mean simple_cnn"):
        run(small("choir-v1", settings={"shared_model": "simple_cn"}))
