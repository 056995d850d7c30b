"""FedProc: global prototypes and the weight of the contrast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.methods.one_client import features

from fedchoir.core.exchange import Reply
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def test_global_prototypes_are_means_over_the_clients_that_have_the_class(harness: Make, uneven: Path) -> None:
    s = harness("fedproc", scenario=uneven)
    s.run_rounds()
    local = {}
    for c in s.clients:
        h, y = features(c), c.private.labels.numpy()
        local[c.index] = {k: h[y == k].mean(axis=0) for k in set(y.tolist())}
    s.run_rounds()
    for c in s.clients:
        kept, present = c.memory["prototypes"], c.memory["present"]
        assert present.tolist() == [True, True, True, False]
        for k in range(3):
            owners = [u[k] for u in local.values() if k in u]
            np.testing.assert_allclose(kept[k], np.mean(owners, axis=0), rtol=1e-4, atol=1e-5)


def test_the_contrast_fades(harness: Make) -> None:
    falling, fixed = harness("fedproc", rounds=4), harness("fedproc", alpha=0.5)
    client = falling.clients[0]
    alphas = []
    for index in range(4):
        client.begin(index)
        alphas.append(falling.method.alpha(client))
    assert alphas == [1.0, 0.75, 0.5, 0.25]
    assert fixed.method.alpha(client) == 0.5


def test_prototypes_of_another_width_are_left_out(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedproc")
    ask = LocalEngine.execute

    def wide(self: LocalEngine, *arguments: Any) -> Any:
        for reply in ask(self, *arguments):
            if reply.client == 0 and reply.payloads:
                payload = Payload({**reply.payloads[0], "prototypes": torch.zeros(4, 999)})
                yield Reply(0, [payload], reply.report)
            else:
                yield reply

    monkeypatch.setattr(LocalEngine, "execute", wide)
    (event,) = s.run_rounds()
    assert [out["client"] for out in event["left_out"]] == [s.clients[0].name]
    assert "declared as C d = (4, 32)" in event["left_out"][0]["why"]
