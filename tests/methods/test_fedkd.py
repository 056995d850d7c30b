"""FedKD: adaptive mutual distillation, and compressed updates of the mentee in both directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import divergence, softmax

from fedchoir import Experiment, run
from fedchoir.core.training import Batch
from fedchoir.methods.low_rank import unpacked
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
SMALL = "simple_cnn@4"


def mentees(s: FederationHarness) -> list[dict[str, torch.Tensor]]:
    return [{n: t.clone() for n, t in c.modules["mentee"].state_dict().items()} for c in s.clients]


@pytest.mark.parametrize("floor", [0.0, 50.0])
def test_the_loss_is_that_of_both_models_with_adaptive_weights(harness: Make, floor: float) -> None:
    s = harness("fedkd", loss_floor=floor)
    client = s.clients[0]
    images, labels = next(client.private_chunks())
    with torch.no_grad():
        (h, z), (h2, z2) = (m.features_and_logits(images) for m in (client.model, client.modules["mentee"]))
        mapped = client.modules["hidden"](h2)
    p, q = softmax(z.double().numpy()), softmax(z2.double().numpy())
    picked = np.arange(len(labels)), labels.numpy()
    ce, ce2 = -np.log(p[picked]).mean(), -np.log(q[picked]).mean()
    hidden = ((h - mapped).double().numpy() ** 2).mean()
    divisor = max(ce + ce2, floor)
    expected = ce + ce2 + (divergence(q, p).mean() + divergence(p, q).mean() + 2 * hidden) / divisor
    value = s.method.local_loss(client, Batch(images, labels))
    assert value.item() == pytest.approx(expected, rel=1e-4)


def test_each_loss_trains_its_own_model(harness: Make) -> None:
    """By finite differences of the own model's loss in its head's bias, everything of the mentee held fixed."""
    s = harness("fedkd", models=(SMALL, "mlp", "simple_cnn@6"), loss_floor=0.0)
    client = s.clients[0]
    images, labels = next(client.private_chunks())
    s.method.local_loss(client, Batch(images, labels)).backward()
    with torch.no_grad():
        h, z = (t.double().numpy() for t in client.model.features_and_logits(images))
        h2, z2 = client.modules["mentee"].features_and_logits(images)
        mapped = client.modules["hidden"](h2).double().numpy()
    q, picked = softmax(z2.double().numpy()), (np.arange(len(labels)), labels.numpy())

    def own_loss(shift: np.ndarray) -> float:
        p = softmax(z + shift)
        ce, ce2 = -np.log(p[picked]).mean(), -np.log(q[picked]).mean()
        return float(ce + (divergence(q, p).mean() + ((h - mapped) ** 2).mean()) / (ce + ce2))

    step = 1e-5 * np.eye(4)
    expected = [(own_loss(e) - own_loss(-e)) / 2e-5 for e in step]
    np.testing.assert_allclose(client.model.head.bias.grad, expected, rtol=1e-3, atol=1e-5)


def test_the_energy_grows_to_its_end(harness: Make) -> None:
    method = harness("fedkd").method
    assert [round(method.energy(t, 3), 4) for t in range(3)] == [0.96, 0.97, 0.98]


def test_the_server_averages_restored_updates_and_clients_apply_the_compressed_average(harness: Make) -> None:
    s = harness("fedkd")
    start = mentees(s)[0]
    assert equal(mentees(s), [start] * 3)
    (event,) = s.run_rounds()
    sent = [unpacked(s.method.upload_mentee(c)) for c in s.clients]  # as they were sent: nothing has changed since
    assert event["bytes_up"] == sum(s.method.upload_mentee(c).nbytes for c in s.clients)
    assert event["bytes_up"] < 3 * sum(t.nbytes for t in start.values())
    server = Payload(s.method.server)
    update = unpacked(server.only("update")).under("update")
    for name, t in start.items():
        mean = np.mean([payload[f"update/{name}"].double().numpy() for payload in sent], axis=0)
        found = update[name].double().numpy()
        if t.dim() > 1:
            kept = 1 - ((found - mean) ** 2).sum() / (mean**2).sum()
            assert kept >= s.method.energy(0, 4) - 1e-6
            expected = t + update[name].view_as(t)
        else:
            np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-6)
            expected = update[name]
        torch.testing.assert_close(server[f"mentee/{name}"], expected)
    seen: list[dict[str, torch.Tensor]] = []
    local_update = type(s.method).local_update

    def spy(method: object, client: object) -> None:
        seen.append({n: t.clone() for n, t in client.modules["mentee"].state_dict().items()})  # type: ignore[attr-defined]
        local_update(method, client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(s.method), "local_update", spy)
        (event,) = s.run_rounds()
    assert equal(seen, [server.under("mentee")] * 3)
    assert event["bytes_down"] == 3 * server.only("update").nbytes


def test_a_client_that_missed_the_last_round_receives_weights(harness: Make) -> None:
    s = harness("fedkd", fraction=0.67)
    s.run_rounds()
    server = Payload(s.method.server)
    r = s.spec.round(1, s.method.params)
    before = s.spec.participants(0, 0.67)
    received = s.method.mentee_for(r)
    assert set(received) == set(r.clients)
    for k, payload in received.items():
        assert set(payload) == set(server.only("update" if k in before else "mentee"))
    missed = [k for k in range(3) if k not in before]
    s.method.download_mentee(s.clients[missed[0]], server.only("mentee"))
    assert equal(mentees(s)[missed[0]], server.under("mentee"))


def test_a_lower_energy_costs_fewer_bytes(harness: Make) -> None:
    small, large = harness("fedkd", energy_start=0.5, energy_end=0.5), harness("fedkd", energy_start=1, energy_end=1)
    (cheap,), (whole,) = small.run_rounds(), large.run_rounds()
    assert cheap["bytes_up"] < whole["bytes_up"] <= 3 * sum(t.nbytes for t in mentees(large)[0].values())
    for c in large.clients:
        sent = unpacked(large.method.upload_mentee(c)).under("update")
        for name, t in c.modules["mentee"].state_dict().items():
            change = t - c.stored_weights("start")[name] if t.dim() > 1 else t
            torch.testing.assert_close(sent[name].view_as(t), change, rtol=1e-3, atol=1e-6)


def test_an_unknown_shared_model_is_refused(small: Callable[..., Experiment]) -> None:
    experiment = small("fedkd", settings={"shared_model": "simple_cn"})
    with pytest.raises(UsageError, match="unknown model 'simple_cn'; did you mean simple_cnn"):
        run(experiment)
    assert not experiment.out.exists()
