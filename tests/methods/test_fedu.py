"""FedU: the predictor of diverged clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal, events

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.client import Client

Small = Callable[..., Experiment]


def weights(experiment: Experiment, client: int = 0) -> dict[str, torch.Tensor]:
    state = checkpoint.load(checkpoint.latest(experiment.out / "checkpoint"), f"client-{client:05d}")
    return {name: t for name, t in state.items() if not name.startswith(("modules/correlations", "memory/"))}


@pytest.mark.parametrize(("threshold", "own"), [(0.0, True), (1e6, False)])
def test_fedu_keeps_its_predictor_where_it_diverged(
    threshold: float, own: bool, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    cls = methods.get("fedu")
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        before = {n: t.clone() for n, t in client.modules["predictor"].state_dict().items()}
        target = {n: t.clone() for n, t in client.modules["target"].state_dict().items()}
        download(self, client, received)
        assert equal(client.model.state_dict(), received.under("weights"))
        assert equal(client.modules["target"].state_dict(), target)
        after = client.modules["predictor"].state_dict()
        kept.append((equal(after, before), equal(after, received.under("predictor"))))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedu", rounds=2, settings={"threshold": threshold}))
    assert kept == [(own, not own)] * 3


def test_every_decision_about_the_predictor_is_recorded(small: Small) -> None:
    for threshold, decision in ((0.0, 0.0), (1e6, 1.0)):
        experiment = small("fedu", f"t{decision:g}", rounds=3, settings={"threshold": threshold})
        run(experiment)
        first, *later = events(experiment)
        assert all("predictor_updated" not in losses for losses in first["losses"].values())
        for losses in (losses for event in later for losses in event["losses"].values()):
            assert losses["predictor_updated"] == decision
            assert losses["divergence"] > 0
