"""FedBN: normalisation stays at the clients, the rest is FedAvg."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.payload import declared_by

Make = Callable[..., FederationHarness]
State = dict[str, torch.Tensor]


def is_normalisation(name: str) -> bool:
    """By the names of a ResNet's layers: the stem's second layer, bn1, bn2, and the shortcut's second."""
    return any(part in name for part in ("trunk.0.1.", ".bn1.", ".bn2.", ".downsample.1."))


def halves(state: State) -> tuple[State, State]:
    own = {n: t for n, t in state.items() if is_normalisation(n)}
    return own, {n: t for n, t in state.items() if n not in own}


def test_normalisation_stays_and_the_rest_is_averaged(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedbn", ("resnet10@4",), weighting="uniform")
    s.run_rounds()
    ends, merged = s.weights(), s.method.global_weights()
    own, shared = halves(ends[0])
    assert own
    assert merged.keys() == shared.keys()
    for name, value in merged.items():
        torch.testing.assert_close(value, sum(state[name] for state in ends) / 3, rtol=1e-5, atol=1e-6)
    starts: list[State] = []
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.append(c.snapshot()), local_update(m, c))[1]
    )
    s.run_rounds()
    for start, end in zip(starts, ends, strict=True):
        assert equal(halves(start)[0], halves(end)[0])
        assert equal(halves(start)[1], merged)
    assert not equal(halves(starts[0])[0], halves(starts[1])[0])


def test_clients_send_no_normalisation(harness: Make) -> None:
    s, plain = harness("fedbn", ("resnet10@4",)), harness("fedavg", ("resnet10@4",))
    (event,), (other,) = s.run_rounds(), plain.run_rounds()
    own, shared = halves(s.weights()[0])
    assert event["bytes_up"] == 3 * sum(t.nbytes for t in shared.values())
    assert other["bytes_up"] - event["bytes_up"] == 3 * sum(t.nbytes for t in own.values())
    kept = {name.removeprefix("weights/") for name, shape in declared_by(s.method.upload).items() if shape == "kept"}
    assert kept == own.keys()


def test_every_client_evaluates_the_average_with_its_own_normalisation(harness: Make) -> None:
    s = harness("fedbn", ("resnet10@4",))
    event = s.run_rounds(2)[-1]
    before = s.weights()
    rows = []
    for client, state in zip(s.clients, before, strict=True):
        client.model.load_state_dict({**s.method.global_weights(), **halves(state)[0]})
        rows.append([score.accuracy for score in s.method.evaluate(client, s.engine._tests)])
        client.model.load_state_dict(state)
    assert event["accuracy"] == rows
    assert not all(row == rows[0] for row in rows)


@pytest.mark.parametrize("model", ["simple_cnn@4", "mlp@16"])
def test_without_normalisation_it_is_fedavg(model: str, harness: Make) -> None:
    one, two = harness("fedbn", (model,)), harness("fedavg", (model,))
    events = [s.run_rounds(2) for s in (one, two)]
    assert equal(one.weights(), two.weights())
    assert [e["accuracy"] for e in events[0]] == [e["accuracy"] for e in events[1]]


def test_all_kinds_of_normalisation_stay(harness: Make) -> None:
    s = harness("fedbn", ("resnet10_gn@16",))
    assert {name for name in s.clients[0].model.state_dict() if is_normalisation(name)} == s.method.own_names
