"""Retention and CKA across an exchange that is played again, and rounds to a target accuracy."""

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
from fedchoir.reporting.analysis.load import load_run, ready
from fedchoir.reporting.analysis.retention import class_accuracy, exchange_cka, play_exchange, retention
from fedchoir.reporting.analysis.rounds_to_target import race, rounds_to_target
from fedchoir.utils.errors import UsageError


@pytest.fixture
def played(small: Callable[..., Experiment]) -> Callable[..., Path]:
    def play(method: str, **changes: Any) -> Path:
        experiment = small(method, method, rounds=2, **changes)
        run(experiment)
        return experiment.out

    return play


def test_an_exchange_is_played_again_and_measured(played: Callable[..., Path]) -> None:
    finished = load_run(played("fedct"), device="cpu")
    moved = play_exchange(finished)
    assert sorted(m.source for m in moved) == sorted(m.target for m in moved) == [0, 1, 2]
    assert all(m.source != m.target for m in moved)
    rows = retention(finished, moved)
    for row, move in zip(rows, moved, strict=True):
        assert sum(row["source_images"]) == 48
        test = next(iter(finished.scenario.tests.values()))
        assert row["before"] == pytest.approx(class_accuracy(move.before, test, 4).tolist(), abs=0.01)
        assert row["kept"] == pytest.approx(sum(row["after"]) / sum(row["before"]), abs=1e-3)
        changed = [
            not torch.equal(a, b) for a, b in zip(move.before.parameters(), move.after.parameters(), strict=True)
        ]
        assert all(changed)
    cka = exchange_cka(finished, moved, count=64)
    assert len(cka["local"]["features"]) == 3
    assert all(0 < value <= 1 for value in cka["local"]["features"])
    assert -1 <= cka["global_mean"] <= 1
    assert cka["local_mean"] == pytest.approx(sum(cka["local"]["features"]) / 3, abs=1e-3)
    again = play_exchange(load_run(finished.folder, device="cpu"))
    for one, two in zip(moved, again, strict=True):
        assert (one.source, one.target) == (two.source, two.target)
        assert all(torch.equal(a, b) for a, b in zip(one.after.parameters(), two.after.parameters(), strict=True))


def test_only_methods_that_exchange_models_have_one(played: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="fedavg exchanges no models"):
        play_exchange(load_run(played("fedavg"), device="cpu"))


def test_who_got_whose_model_is_in_the_events(played: Callable[..., Path]) -> None:
    folder = played("fedexg", settings={"exchanges": 2})
    for line in (folder / "events.jsonl").read_text().splitlines():
        exchanges = json.loads(line)["measures"]["exchanges"]
        assert len(exchanges) == 2
        for moves in exchanges:
            assert sorted(a for a, _ in moves) == sorted(b for _, b in moves) == [0, 1, 2]
            assert all(a != b for a, b in moves)


def test_accuracy_of_each_class() -> None:
    model = build("mlp", 4, image_size=16)
    torch.manual_seed(0)
    images = ImageSet(torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8), torch.arange(30) % 3)
    found = class_accuracy(model, images, 4)
    with torch.no_grad():
        said = model.eval()(ready(images)).argmax(1)
    for label in range(3):
        where = images.labels == label
        assert float(found[label]) == pytest.approx(100 * float((said[where] == label).float().mean()))
    assert found[3].isnan()


# -- rounds to a target --------------------------------------------------------------------------------------------


def event(index: int, accuracy: float | None) -> dict[str, Any]:
    return {"round": index, "intra_avg": accuracy, "bytes_up": 1_000_000, "bytes_down": 2_000_000}


def test_the_first_round_at_or_above_the_target_counts() -> None:
    events = [event(0, 10.0), event(1, 50.0), event(2, None), event(3, 49.0), event(4, 70.0)]
    assert [rounds_to_target(events, t) for t in (5, 50, 50.1, 70, 71)] == [1, 2, 5, 5, None]


def test_a_race_between_runs(played: Callable[..., Path]) -> None:
    folders = [played("fedavg"), played("fedexg")]
    easy, hard = race(folders, 0.0), race(folders, 101.0)
    assert [(r.method, r.rounds) for r in easy] == [("fedavg", 1), ("fedexg", 1)]
    assert [(r.rounds, r.gigabytes) for r in hard] == [(None, None)] * 2
    first = json.loads((folders[1] / "events.jsonl").read_text().splitlines()[0])
    assert easy[1].gigabytes == pytest.approx((first["bytes_up"] + first["bytes_down"]) / 1e9)
    assert easy[0].gigabytes < easy[1].gigabytes  # an exchange costs a model more, both ways
