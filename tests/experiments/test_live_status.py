"""live.json: there while a run goes on, gone afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.helpers import run_folder

from fedchoir import Experiment, run
from fedchoir.experiments.live_status import LiveStatus


def test_the_current_client_and_phase(small: Callable[..., Experiment]) -> None:
    experiment = small("fedmd", rounds=2)
    seen: list[dict[str, Any]] = []

    class Reader(LiveStatus):
        def client(self, name: str, phase: str) -> None:
            self._written = 0.0  # do not wait for the next write
            super().client(name, phase)
            seen.append(json.loads((run_folder(experiment) / "live.json").read_text()))

    run(experiment, observers=[Reader()])
    assert {status["client"] for status in seen} >= {"red", "green", "white"}
    assert len({status["phase"] for status in seen}) > 1
    assert not (run_folder(experiment) / "live.json").exists()
