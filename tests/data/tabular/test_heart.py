"""The heart disease data: FLamby's rows, split, labels and inputs."""

import numpy as np
import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.scenario import load_scenario
from fedchoir.data.tabular import heart
from fedchoir.data.tabular.cells import store

SIZES = {"cleveland": (199, 104), "hungary": (172, 89), "switzerland": (30, 16), "long-beach": (85, 45)}


def test_sizes_and_inputs_are_those_of_flamby() -> None:
    scenario = load_scenario("heart", options=DataOptions(drop_first=True))
    assert {c.name: (len(c.train), len(scenario.tests[c.domain])) for c in scenario.clients} == SIZES
    assert scenario.classes == ("absent", "present")
    assert scenario.inputs.shape == (13,)
    assert not any(client.train.inputs.isnan().any() for client in scenario.clients)


@pytest.mark.parametrize("name", heart.HOSPITALS)
def test_all_rows_without_missing_values_are_there_once(name: str) -> None:
    train, test = heart.hospital(name)
    assert sorted([*train.index, *test.index]) == list(range(sum(SIZES[name])))
    assert len(train) + len(test) == {"cleveland": 303, "hungary": 261, "switzerland": 46, "long-beach": 130}[name]


def test_labels_are_stratified() -> None:
    for name in ("cleveland", "hungary", "long-beach"):
        train, test = (frame[heart.TARGET] == "present" for frame in heart.hospital(name))
        assert abs(train.mean() - test.mean()) < 0.01


def test_agreed_columns_hold_every_category() -> None:
    for name in heart.HOSPITALS:
        for frame in heart.hospital(name):
            cells = store(frame, heart.COLUMNS, name).numpy()
            assert not np.isnan(cells).any()
            assert (cells[:, [c.kind == "categorical" for c in heart.COLUMNS]] >= 0).all()
