"""Data frames that a user's function returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedchoir.data.options import DataOptions
from fedchoir.data.public import load_public
from fedchoir.data.registry import info
from fedchoir.data.scenario import load_scenario
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.utils.errors import UsageError

CODE = """
import pandas as pd
from torch.utils.data import TensorDataset
import torch

def rows(count, first=0):
    values = list(range(first, first + count))
    frame = pd.DataFrame({"age": values, "smoker": ["yes", "no"] * (count // 2), "ill": [i % 2 for i in values]})
    return frame.set_index(pd.Index([7] * count))

NORTH = rows(40)

def clients():
    return {"north": NORTH, "south": (rows(30, 100), rows(10, 200)), "west": [rows(20, 300)]}

def public():
    return rows(12).drop(columns="ill")

def datasets():
    return {"a": TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20) % 2)}

def mixed():
    return {"north": NORTH, **datasets()}

def mixed_pair():
    return {"north": (NORTH, datasets()["a"])}

def twice():
    return {"north": pd.concat([NORTH, NORTH], axis=1)}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "frames.py").write_text(CODE)
    return f"{tmp_path}/frames.py"


def test_a_function_that_returns_data_frames(mine: str) -> None:
    known = info(f"{mine}:clients")
    assert (known.domains, known.modality, known.public) == (("north", "south", "west"), "table", "column-ranges")
    assert known.models == ("logistic", "mlp", "res_mlp", "ft_transformer")
    scenario = load_scenario(f"{mine}:clients", options=DataOptions(target="ill"))
    sizes = [(len(client.train), len(scenario.tests[client.name])) for client in scenario.clients]
    assert sizes == [(32, 8), (30, 10), (16, 4)]
    like = scenario.clients[0].train
    assert isinstance(like, TableSet)
    assert [column.name for column in like.columns] == ["age", "smoker"]
    public = load_public(f"{mine}:public", like=like, size=10)
    assert public.samples.inputs.shape == (10, 2)
    assert len(load_public("column-ranges", like=like, size=5)) == 5


def test_what_cannot_be_used_is_one_line(mine: str) -> None:
    with pytest.raises(UsageError, match="scenario: a has a TensorDataset; wanted one pandas DataFrame"):
        load_scenario(f"{mine}:mixed")
    with pytest.raises(UsageError, match="scenario: north has a DataFrame and a TensorDataset; wanted"):
        load_scenario(f"{mine}:mixed_pair")
    with pytest.raises(UsageError, match="north: the column 'age' occurs twice"):
        load_scenario(f"{mine}:twice")
    like = load_scenario(f"{mine}:clients").clients[0].train
    with pytest.raises(UsageError, match="a dict is returned; wanted a pandas DataFrame, as the clients'"):
        load_public(f"{mine}:datasets", like=like)
    tensors = load_scenario(f"{mine}:datasets").clients[0].train
    with pytest.raises(UsageError, match="public set: a pandas DataFrame is given where a Dataset is wanted"):
        load_public(f"{mine}:public", like=tensors)
