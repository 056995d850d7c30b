"""Networks of different widths: what is sent, averaged, evaluated and refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir import Experiment, run
from fedchoir.core.actions import Exchange
from fedchoir.core.exchange import Reply, find_fault, state_shapes
from fedchoir.payload import state_payload
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
State = dict[str, torch.Tensor]
WIDTHS = ("resnet10@2", "resnet10@4", "resnet10@3")
PLAIN = {"masked": False, "static_batchnorm": False}


def window(full: int, part: int, shift: int) -> list[int]:
    return list(range(full)) if part == full else sorted((shift + k) % full for k in range(part))


def placed(full: torch.Size, part: torch.Size, shift: int) -> tuple[np.ndarray, ...]:
    """NumPy's index of a slice."""
    return np.ix_(*(window(n, m, shift) for n, m in zip(full, part, strict=True)))


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_slices_go_down_and_means_by_coverage_come_back(
    method: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds against NumPy: what each client starts from, and what the server makes of what they send."""
    s = harness(method, WIDTHS, weighting="uniform", fraction=0.67, rounds=4)
    learned = dict(s.method.architecture.named_parameters())
    wide = {n: t.clone() for n, t in s.method.architecture.state_dict().items()}
    starts: dict[int, State] = {}
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.update({c.index: c.snapshot()}), local_update(m, c))[1]
    )
    for index in range(3):
        shift = index if method == "fedrolex" else 0
        (event,) = s.run_rounds()
        assert len(event["clients"]) == len(starts) == 2
        totals = {n: np.zeros(t.shape) for n, t in wide.items()}
        counts = {n: np.zeros(t.shape) for n, t in wide.items()}
        for k, start in starts.items():
            end = s.clients[k].snapshot()
            for n, t in start.items():
                place = placed(wide[n].shape, t.shape, shift) if t.dim() else ()
                if n in learned:
                    np.testing.assert_array_equal(t.numpy(), wide[n].numpy()[place])
                    totals[n][place] += end[n].numpy()
                    counts[n][place] += 1
        for n in learned:
            mean = totals[n] / np.maximum(counts[n], 1)
            expected = np.where(counts[n] > 0, mean, wide[n].numpy())
            np.testing.assert_allclose(s.method.server[f"weights/{n}"].numpy(), expected, rtol=1e-5, atol=1e-6)
            wide[n] = s.method.server[f"weights/{n}"].clone()
        starts.clear()


def test_statistics_are_averaged_over_one_width(harness: Make) -> None:
    s = harness("heterofl", ("resnet10@4", "resnet10@2", "resnet10@4"), weighting="uniform")
    s.run_rounds()
    first, narrow, third = s.weights()
    name = "trunk.1.0.bn1.running_mean"
    torch.testing.assert_close(s.method.server[f"buffers0/{name}"], (first[name] + third[name]) / 2)
    assert torch.equal(s.method.server[f"buffers1/{name}"][:2], narrow[name])
    assert torch.equal(s.method.client_weights(1, s.method.global_weights(), 0)[name], narrow[name])


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_clients_evaluate_their_own_slices(method: str, harness: Make) -> None:
    s = harness(method, WIDTHS)
    events = s.run_rounds(2)
    rows = []
    for client in s.clients:
        state = client.snapshot()
        client.model.load_state_dict(s.method.client_weights(client.index, s.method.global_weights(), 1))
        rows.append([score.accuracy for score in s.method.evaluate(client, s.engine._tests)])
        client.model.load_state_dict(state)
    assert events[-1]["accuracy"] == rows
    own = harness(method, WIDTHS, eval_model="own")
    own.run_rounds(2)
    assert own.method.global_weights() is None
    assert equal(own.weights(), s.weights())


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_with_one_width_it_is_fedavg(method: str, harness: Make) -> None:
    one, two = harness(method, ("resnet10@4",), **PLAIN), harness("fedavg", ("resnet10@4",))
    events = [s.run_rounds(3) for s in (one, two)]
    assert equal(one.weights(), two.weights())
    assert [e["accuracy"] for e in events[0]] == [e["accuracy"] for e in events[1]]


def test_a_payload_must_have_the_shapes_of_its_clients_model(harness: Make) -> None:
    s = harness("heterofl", WIDTHS)
    method = s.method
    payloads = [method.upload(client) for client in s.clients]

    def fault(client: int, sent: int) -> str:
        exchange, shapes = Exchange(method.upload), state_shapes(method, method.upload, client)
        return find_fault(Reply(client, [payloads[sent]]), exchange, method.spec.dims, *shapes)

    assert fault(0, 0) == fault(1, 1) == ""
    assert "has shape" in fault(0, 1)
    assert "has shape" in fault(1, 0)
    assert payloads[0].nbytes < payloads[2].nbytes < payloads[1].nbytes


def test_the_server_has_the_widest_clients_network(harness: Make) -> None:
    method = harness("heterofl", WIDTHS).method
    assert method.widest == "resnet10@4"
    assert {n: t.shape for n, t in method.architecture.state_dict().items()} == {
        n: t.shape for n, t in method.model_shapes(1).items()
    }
    assert method.model_shapes(0) is method.model_shapes(0)


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (
            ("resnet10@4", "simple_cnn@4"),
            "averages slices of one architecture, and .* is no part of .*: its layers are ",
        ),
        (("resnet10@4", "resnet12@4"), "and resnet10@4 is no part of resnet12@4: its layers are not narrower ones"),
        (("googlenet@0.5", "googlenet@0.25"), "and googlenet@0.25 is no part of googlenet@0.5: one window cannot cut"),
    ],
)
def test_other_families_are_refused_in_one_line(
    models: tuple[str, ...], why: str, small: Callable[..., Experiment]
) -> None:
    experiment = small("heterofl", models=models)
    with pytest.raises(UsageError, match=why) as error:
        run(experiment)
    assert "\n" not in str(error.value)
    assert not experiment.out.exists()


def test_a_robust_rule_is_refused(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="robust = 'median' is not possible with heterofl: it takes means of slices"):
        run(small("heterofl", settings={"robust": "median"}))


def test_weights_that_are_already_a_slice_stay_as_they_are(harness: Make) -> None:
    """At a site: the federation that it knows has its own client alone."""
    s = harness("fedrolex", WIDTHS)
    s.run_rounds(2)
    own = s.method.client_weights(0, s.method.global_weights(), 1)
    alone = harness("fedrolex", WIDTHS[:1]).method
    again = alone.client_weights(0, dict(state_payload("weights", own)), 1)
    assert equal(again, own)
