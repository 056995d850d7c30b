"""FedEMA: the share of a client's own network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import events
from tests.methods.ssl.one_client import one_client

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client
from fedchoir.methods.fedbyol import divergence
from fedchoir.methods.ssl.objectives import online_parameters
from fedchoir.payload import Payload, state_payload

Small = Callable[..., Experiment]


def weights(experiment: Experiment, client: int = 0) -> dict[str, torch.Tensor]:
    state = checkpoint.load(checkpoint.latest(experiment.out / "checkpoint"), f"client-{client:05d}")
    return {name: t for name, t in state.items() if not name.startswith(("modules/correlations", "memory/"))}


def test_fedema_keeps_tau_of_its_own_at_first(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    cls = methods.get("fedema")
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        name = next(n for n, p in client.model.named_parameters() if p.dim() > 1)
        own, average = client.model.state_dict()[name].clone(), received.under("weights")[name]
        download(self, client, received)
        mixed = client.model.state_dict()[name]
        shares.append((client.index, client.round, ((mixed - average).norm() / (own - average).norm()).item()))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedema", rounds=3, settings={"tau": 0.7}))
    assert [share for _, index, share in shares if index == 1] == pytest.approx([0.7] * 3, abs=1e-4)
    later = [share for _, index, share in shares if index == 2]
    assert all(0 < share <= 1 for share in later)
    assert later != pytest.approx([0.7] * 3, abs=1e-3)


def test_every_round_records_divergence_and_share(small: Small) -> None:
    experiment = small("fedema", rounds=3, settings={"tau": 0.7})
    run(experiment)
    first, second, third = events(experiment)
    assert all("mu" not in losses for losses in first["losses"].values())
    assert all(losses["mu"] == pytest.approx(0.7) for losses in second["losses"].values())
    for k, losses in third["losses"].items():
        ratio = losses["divergence"] / second["losses"][k]["divergence"]
        assert losses["mu"] == pytest.approx(min(0.7 * ratio, 1.0), rel=1e-4)


def test_divergence_may_be_the_drift_of_the_last_local_phase() -> None:
    method, client = one_client("fedema", divergence="drift", tau=0.5)
    before = client.snapshot()
    method.local_update(client)
    drift = divergence(client.model, before)
    own = client.snapshot()
    far = {f"weights/{name}": t + 10 for name, t in client.model.state_dict().items()}
    modules = [
        state_payload(name, client.modules[name].state_dict()) for name in ("calibration", "projector", "predictor")
    ]
    method.download(client, Payload(far | {n: t for m in modules for n, t in m.items()}))
    torch.testing.assert_close(client.report()["divergence"], float(drift))  # not the distance to the average
    name = next(n for n, p in client.model.named_parameters() if p.dim() > 1)
    torch.testing.assert_close(client.model.state_dict()[name], own[name] + 5)


@pytest.mark.parametrize("name", ["fedbyol", "fedema", "fedu"])
@pytest.mark.parametrize("target", ["global", "local"])
def test_the_target_network_follows_the_average_or_stays_local(name: str, target: str) -> None:
    method, client = one_client(name, target_network=target)
    method.local_update(client)
    slow = [p.clone() for p in client.modules["target"].parameters()]
    payload = method.upload(client)
    method.download(client, Payload({n: t + 1 if t.is_floating_point() else t for n, t in payload.items()}))
    now = list(client.modules["target"].parameters())
    expected = online_parameters(client) if target == "global" else slow
    assert all(torch.equal(a, b) for a, b in zip(now, expected, strict=True))
