"""FedEMA: the share of a client's own network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client

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
