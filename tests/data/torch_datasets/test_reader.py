"""A user's function as a scenario and as a public set."""

from pathlib import Path

import pytest

from fedchoir.data.public import load_public
from fedchoir.data.registry import info
from fedchoir.data.scenario import load_scenario
from fedchoir.utils.errors import UsageError
from fedchoir.utils.plugins import load_file

CODE = """
import torch
from torch.utils.data import TensorDataset

def data(count, seed):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > 0).long())

def clients():
    return {"north": data(40, 0), "south": (data(30, 1), data(10, 2))}

def public():
    return data(25, 3)

def wide():
    return TensorDataset(torch.zeros(5, 7), torch.zeros(5))

def number():
    return 3

calls = []

def counted():
    calls.append(1)
    return clients()
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path}/mine.py"


def test_a_function_that_returns_datasets(mine: str) -> None:
    known = info(f"{mine}:clients")
    assert (known.domains, known.modality, known.models) == (("north", "south"), "tensor", ("mlp",))
    scenario = load_scenario(f"{mine}:clients")
    sizes = [(len(client.train), len(scenario.tests[client.name])) for client in scenario.clients]
    assert sizes == [(32, 8), (30, 10)]
    public = load_public(f"{mine}:public", like=scenario.clients[0].train, size=20)
    assert (len(public), public.samples.inputs.shape) == (20, (20, 4))


def test_a_function_is_called_once(mine: str) -> None:
    for _ in range(2):
        info(f"{mine}:counted")
        load_scenario(f"{mine}:counted")
    assert len(load_file(mine, "test").calls) == 1


def test_what_cannot_be_used_is_one_line(mine: str) -> None:
    with pytest.raises(UsageError, match="returned a int; wanted a dict from client name to Dataset"):
        load_scenario(f"{mine}:number")
    like = load_scenario(f"{mine}:clients").clients[0].train
    with pytest.raises(UsageError, match="has tensor 7, but the clients have tensor 4"):
        load_public(f"{mine}:wide", like=like)
    with pytest.raises(UsageError, match=r"'photos' should be FILE\.py:FUNCTION"):
        load_public("photos", like=like)
    with pytest.raises(UsageError, match=r"--public is missing: .* tensor samples; it could be FILE\.py:FUNCTION"):
        load_public("", like=like)
    with pytest.raises(UsageError, match="nothing called 'other'"):
        load_scenario(f"{mine}:other")
