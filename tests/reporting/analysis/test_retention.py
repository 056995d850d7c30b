from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedchoir import Experiment, run
from fedchoir.data.image.image_set import ImageSet
from fedchoir.models import build
from fedchoir.reporting.analysis.load import load_run, normalised
from fedchoir.reporting.analysis.retention import class_accuracy, exchange_cka, repeat_exchange, retention
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


@pytest.fixture
def finished(small: Callable[..., Experiment]) -> Callable[..., Path]:
    def play(method: str, **changes: Any) -> Path:
        experiment = small(method, method, rounds=2, **changes)
        run(experiment)
        return experiment.out

    return play


def test_an_exchange_is_repeated_and_measured(finished: Callable[..., Path]) -> None:
    loaded = load_run(finished("fedct"), device="cpu")
    moved = repeat_exchange(loaded)
    assert sorted(m.source for m in moved) == sorted(m.target for m in moved) == [0, 1, 2]
    assert all(m.source != m.target for m in moved)
    rows = retention(loaded, moved)
    for row, move in zip(rows, moved, strict=True):
        assert sum(row["source_images"]) == 48
        test = next(iter(loaded.scenario.tests.values()))
        assert row["before"] == pytest.approx(class_accuracy(move.before, test, 4).tolist(), abs=0.01)
        assert row["kept"] == pytest.approx(sum(row["after"]) / sum(row["before"]), abs=1e-3)
        changed = [
            not torch.equal(a, b) for a, b in zip(move.before.parameters(), move.after.parameters(), strict=True)
        ]
        assert all(changed)
    cka = exchange_cka(loaded, moved, count=64)
    assert len(cka["local"]["features"]) == 3
    assert all(0 < value <= 1 for value in cka["local"]["features"])
    assert -1 <= cka["global_mean"] <= 1
    assert cka["local_mean"] == pytest.approx(sum(cka["local"]["features"]) / 3, abs=1e-3)
    again = repeat_exchange(load_run(loaded.folder, device="cpu"))
    for one, two in zip(moved, again, strict=True):
        assert (one.source, one.target) == (two.source, two.target)
        assert all(torch.equal(a, b) for a, b in zip(one.after.parameters(), two.after.parameters(), strict=True))


def test_only_methods_that_exchange_models_have_one(finished: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="fedavg exchanges no models"):
        repeat_exchange(load_run(finished("fedavg"), device="cpu"))


def test_events_record_which_client_received_which_model(finished: Callable[..., Path]) -> None:
    folder = finished("fedexg", settings={"exchanges": 2})
    for line in (folder / "events.jsonl").read_text().splitlines():
        exchanges = json.loads(line)["measures"]["exchanges"]
        assert len(exchanges) == 2
        for moves in exchanges:
            assert sorted(a for a, _ in moves) == sorted(b for _, b in moves) == [0, 1, 2]
            assert all(a != b for a, b in moves)


def test_accuracy_of_each_class() -> None:
    model = build("mlp", 4, InputSpec.image(16))
    torch.manual_seed(0)
    images = ImageSet(torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8), torch.arange(30) % 3)
    found = class_accuracy(model, images, 4)
    with torch.no_grad():
        predicted = model.eval()(normalised(images)).argmax(1)
    for label in range(3):
        where = images.labels == label
        assert float(found[label]) == pytest.approx(100 * float((predicted[where] == label).float().mean()))
    assert found[3].isnan()
