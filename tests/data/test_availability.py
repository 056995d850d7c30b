"""Which data sets are there."""

from pathlib import Path

import numpy as np

from fedchoir.data.availability import data_sets, data_sets_of
from fedchoir.data.registry import SCENARIOS


def test_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "HAR.npz", x=np.zeros(1))
    (tmp_path / "sorted_data_acl" / "books").mkdir(parents=True)
    places = {known.name: known.place for known in data_sets(tmp_path)}
    assert places["har"] == "HAR.npz"
    assert places["amazon-reviews/books"] == "sorted_data_acl/books"
    assert places["amazon-reviews/dvd"] == places["mnist"] == ""
    assert all(known.get for known in data_sets(tmp_path))


def test_every_scenario_names_its_data_sets(tmp_path: Path) -> None:
    counts = {name: len(data_sets_of(known, tmp_path)) for name, known in SCENARIOS.items()}
    assert counts["har"] == counts["har-people"] == 1
    assert counts["amazon-reviews"] == counts["digits"] == 4
    assert {name for name, count in counts.items() if not count} == {"digits-lite", "heart"}  # they come with fedchoir
