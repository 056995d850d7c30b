"""FedDF's public loss against NumPy; groups of one architecture against averages by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import divergence, loss_on, softmax

from fedchoir import Experiment, run
from fedchoir.core.actions import Exchange, Step
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
TWINS = ("simple_cnn@4", "simple_cnn@6", "simple_cnn@4")  # no BatchNorm: train and eval mode agree


def test_the_loss_is_the_divergence_from_the_mean_logits(harness: Make) -> None:
    s = harness("feddf", fusion="clients")
    logits = {k: payload["logits"].double().numpy() for k, payload in s.share().items()}
    mean = np.mean(list(logits.values()), axis=0)
    value = loss_on(s, 1, Payload(logits=torch.from_numpy(mean).float()))
    assert value == pytest.approx(divergence(softmax(mean), softmax(logits[1])).mean(), rel=1e-3)


def test_twins_begin_with_one_model_and_distil_their_average(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("feddf", TWINS, local_epochs=2)
    s.run_rounds()
    ends, sizes = s.weights(), [info.train for info in s.spec.clients]
    assert not equal(ends[0], ends[2])
    seen: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    loss = type(s.method).public_loss

    def spy(method: Any, client: Any, batch: Any) -> torch.Tensor:
        seen[client.index].append((client.snapshot(), batch["logits"], batch.inputs))
        return loss(method, client, batch)

    monkeypatch.setattr(type(s.method), "public_loss", spy)
    s.run_rounds()
    for name, start in seen[0][0][0].items():  # at the first public step: the average by sizes, equal for both
        expected = (sizes[0] * ends[0][name] + sizes[2] * ends[2][name]) / (sizes[0] + sizes[2])
        torch.testing.assert_close(start, expected)
    assert equal(seen[0][0][0], seen[2][0][0])
    assert equal(seen[1][0][0], ends[1])
    for number, (_, target, inputs) in enumerate(seen[1]):  # teachers: the models before averaging, all round long
        teachers = [c.frozen_copy(end)(inputs) for c, end in zip(s.clients, ends, strict=True)]
        torch.testing.assert_close(target, torch.stack(teachers).mean(dim=0), rtol=1e-4, atol=1e-5)
        assert equal(seen[0][number][0], seen[2][number][0])


def test_twins_have_one_initial_model(harness: Make) -> None:
    starts = {}
    for fusion in ("groups", "clients"):
        s = harness("feddf", TWINS, fusion=fusion, local_epochs=0, public_lr=1e-12)
        s.run_rounds()
        starts[fusion] = [client.snapshot() for client in s.clients]
    assert equal(starts["groups"][0], starts["groups"][2])
    assert not equal(starts["clients"][0], starts["clients"][2])


@pytest.mark.parametrize(
    ("models", "settings", "sends_weights"),
    [
        (TWINS, {}, True),
        (TWINS, {"fusion": "clients"}, False),
        (TWINS, {"average": "never"}, False),
        (("simple_cnn@4", "simple_cnn@6", "mlp"), {}, False),
        (("simple_cnn@4",), {}, True),
    ],
)
def test_weights_are_sent_where_architectures_are_shared(
    harness: Make, models: tuple[str, ...], settings: dict[str, Any], sends_weights: bool
) -> None:
    s = harness("feddf", models, **settings)
    script: Any = s.method.round(s.spec.round(0, s.method.params))
    actions: list[Any] = []
    answer: Any = None
    while True:
        try:
            action = script.send(answer)
        except StopIteration:
            break
        actions.append(action)
        if isinstance(action, Exchange):
            answer = [Payload()] if action.batches else {0: Payload()} if len(models) > 1 else Payload()
    names = [action.function.__name__ for action in actions if isinstance(action, Exchange)]
    assert ("upload" in names) == sends_weights
    assert any(isinstance(action, Step) and action.function.__name__ == "local_update" for action in actions)


def test_a_client_without_a_twin_sends_zeros(harness: Make) -> None:
    s = harness("feddf", TWINS)
    sent = [any(t.any() for t in s.method.upload(client).values()) for client in s.clients]
    assert sent == [True, False, True]


def test_a_robust_rule_needs_more_clients_than_a_group_has(harness: Make) -> None:
    with pytest.raises(UsageError, match="set fusion to clients"):
        harness("feddf", TWINS, robust="median")
    harness("feddf", robust="median")


def test_secure_sums_are_refused_for_groups_alone(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match=r"secure = true is not possible with feddf and these models: .* fusion to cl"):
        run(small("feddf", rounds=1, secure=True, models=TWINS))
