"""FedBYOL: averaged networks, and what FedU and FedEMA do for new clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal, events

from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.aggregation import blend
from fedchoir.core.client import Client
from fedchoir.methods.fedbyol import divergence
from fedchoir.methods.ssl.objectives import online_parameters
from fedchoir.models import build
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

Small = Callable[..., Experiment]


def weights(experiment: Experiment, client: int = 0) -> dict[str, torch.Tensor]:
    state = checkpoint.load(checkpoint.latest(experiment.out / "checkpoint"), f"client-{client:05d}")
    return {name: t for name, t in state.items() if not name.startswith(("modules/correlations", "memory/"))}


def test_fedbyol_goes_on_from_the_average_target_too(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = methods.get("fedbyol")
    download = cls.download
    calls = 0

    def spy(self: Any, client: Client, received: Any) -> None:
        nonlocal calls
        download(self, client, received)
        calls += 1
        assert equal(client.model.state_dict(), received.under("weights"))
        for name in ("calibration", "projector", "predictor"):
            assert equal(client.modules[name].state_dict(), received.under(name))
        slow = list(client.modules["target"].parameters())
        assert all(torch.equal(a, b) for a, b in zip(slow, online_parameters(client), strict=True))

    monkeypatch.setattr(cls, "download", spy)
    run(small("fedbyol", rounds=2))
    assert calls == 3


@pytest.mark.parametrize("name", ["fedu", "fedema"])
def test_who_has_not_trained_yet_takes_the_average_as_it_is(
    name: str, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three clients one takes part in a round: the others come later, with weights that nobody has trained."""
    taken: dict[int, list[bool]] = {}
    cls = methods.get(name)
    download = cls.download

    def spy(self: Any, client: Client, received: Any) -> None:
        download(self, client, received)
        whole = equal(client.model.state_dict(), received.under("weights"))
        taken.setdefault(client.index, []).append(
            whole and equal(client.modules["predictor"].state_dict(), received.under("predictor"))
        )

    monkeypatch.setattr(cls, "download", spy)
    experiment = small(name, rounds=8, settings={"fraction": 0.34, **({"threshold": 0.0} if name == "fedu" else {})})
    run(experiment)
    names = [client["name"] for client in json.loads((experiment.out / "result.json").read_text())["clients"]]
    (first,) = events(experiment)[0]["clients"]
    late = [whole for k, whole in taken.items() if names[k] != first]
    assert late
    assert all(whole[0] for whole in late)
    assert not all(again for whole in late for again in whole[1:])  # whoever has trained keeps something


def test_blend_and_divergence_by_hand() -> None:
    torch.manual_seed(0)
    one, two = build("mlp@3", 2, InputSpec.image(16)), build("mlp@3", 2, InputSpec.image(16))
    layers = [(a, b) for (n, a), b in zip(one.named_parameters(), two.parameters(), strict=True) if "neck" in n]
    expected = sum((a - b).pow(2).sum().sqrt() for a, b in layers if a.dim() > 1) / 2
    torch.testing.assert_close(divergence(one, two.state_dict()), expected)
    norm, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    other.weight.data.fill_(3), other.num_batches_tracked.fill_(7)
    blend(norm, other.state_dict(), torch.tensor(0.25))
    assert norm.weight.tolist() == [1.5, 1.5]
    assert norm.num_batches_tracked == 0
    blend(norm, other.state_dict(), torch.tensor(1.0))
    assert equal(norm.state_dict(), other.state_dict())


def test_a_model_without_layers_before_its_head_has_no_divergence() -> None:
    logistic = build("logistic", 2, InputSpec("table", (4,)))
    with pytest.raises(UsageError, match="model 'logistic' has none"):
        divergence(logistic, logistic.state_dict())
