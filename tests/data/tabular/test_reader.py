"""Clients from tables: files, data frames, public sets."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedchoir.data.options import DataOptions
from fedchoir.data.public import load_public
from fedchoir.data.registry import info
from fedchoir.data.scenario import load_scenario
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.reader import DEFAULT_PUBLIC, MODELS, read_tables
from fedchoir.data.tabular.table_set import TableSet
from fedchoir.utils.errors import UsageError


def patients(seed: int, count: int = 50) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 9, count).round(1)
    frame = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], count), "smoker": rng.choice(["yes", "no"], count)})
    return frame.assign(label=np.where(age > 50, "ill", "well"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    patients(0).to_csv(tmp_path / "north.csv", index=False)
    patients(1).to_csv(tmp_path / "south.csv", index=False)
    patients(2, 20).to_csv(tmp_path / "south.test.csv", index=False)
    patients(3)[["smoker", "label", "age"]].to_csv(tmp_path / "west.csv", index=False, sep=";")
    return tmp_path


def test_a_folder_of_tables_is_a_scenario(folder: Path) -> None:
    scenario = load_scenario(str(folder))
    assert info(str(folder)).models == MODELS
    sizes = {c.name: (len(c.train), len(scenario.tests[c.domain])) for c in scenario.clients}
    assert sizes == {"north": (40, 10), "south": (50, 20), "west": (40, 10)}
    assert scenario.classes == ("ill", "well")
    assert scenario.inputs.shape == (4,)
    notes = " | ".join(scenario.notes)
    assert "west lacks the columns sex and has the columns in another order" in notes
    assert "1 numeric (age), 1 boolean (smoker), 1 categorical (sex: f, m)" in notes
    for client in scenario.clients:
        assert client.train.transform(client.train.inputs).isfinite().all()
    assert all(test.transform is None for test in scenario.tests.values())


def test_a_column_split_makes_the_test_set() -> None:
    frame = patients(0).assign(split=["train"] * 30 + ["test"] * 20)
    (domain,) = read_tables({"a": frame}, DataOptions())
    assert (len(domain.train), len(domain.test), domain.own_test) == (30, 20, True)
    (kept,) = read_tables({"a": frame.assign(split="muscle")}, DataOptions())
    assert "split" in [column.name for column in kept.train.columns]
    with pytest.raises(UsageError, match="no row is for training"):
        read_tables({"a": frame.assign(split="test")}, DataOptions())


def test_agreed_columns_are_used_as_they_are() -> None:
    columns = (
        Column("age", min=0, max=120),
        Column("sex", "categorical", ("f", "m", "x")),
        Column("chol", min=0, max=9),
    )
    options = DataOptions(columns=columns)
    domains = read_tables({"a": patients(0), "b": patients(1)}, options)
    assert all(domain.train.columns == columns for domain in domains)
    assert "a lacks the columns chol and also has the columns smoker" in domains[0].notes[0]
    with pytest.raises(UsageError, match="columns differ from the agreed ones: a lacks the columns chol"):
        read_tables({"a": patients(0)}, DataOptions(columns=columns, alignment="strict"))
    with pytest.raises(UsageError, match="a: none of the columns weight is there, only age, sex, smoker"):
        read_tables({"a": patients(0)}, DataOptions(columns=(Column("weight"),)))


def test_columns_of_a_settings_file() -> None:
    options = DataOptions(columns=[{"name": "age", "min": 0, "max": 120}, {"name": "sex", "kind": "boolean"}])
    assert options.columns == (Column("age", min=0.0, max=120.0), Column("sex", "boolean"))
    assert DataOptions(**options.model_dump(mode="json")) == options
    for wrong in ({"name": "age", "low": 3}, {"name": "age", "kind": "big"}, {"name": "c", "kind": "categorical"}):
        with pytest.raises(UsageError, match="columns"):
            DataOptions(columns=[wrong])


def test_tests_are_encoded_by_the_tested_client_or_by_their_domain() -> None:
    frames = {"a": patients(0), "b": patients(1)}
    assert [domain.test.transform for domain in read_tables(frames, DataOptions())] == [None, None]
    own = read_tables(frames, DataOptions(test_encoder="domain"))
    assert all(domain.test.transform == domain.train.transform is not None for domain in own)


def test_label_of_a_test_set_that_no_training_row_has(folder: Path) -> None:
    patients(2, 5).assign(label="dead").to_csv(folder / "south.test.csv", index=False)
    with pytest.raises(UsageError, match="the test rows of south: the label 'dead' was never seen in training"):
        load_scenario(str(folder))


def test_generated_public_rows_are_in_the_ranges_and_equal_at_every_site() -> None:
    columns = (Column("age", min=20, max=90), Column("sex", "categorical", ("f", "m")), Column("smoker", "boolean"))
    sites = [read_tables({name: patients(seed)}, DataOptions(columns=columns))[0].train
             for seed, name in enumerate("ab")]  # fmt: skip
    sets = [load_public(DEFAULT_PUBLIC, like=site, size=300, seed=7) for site in sites]
    assert sets[0].digest == sets[1].digest
    rows = sets[0].samples.inputs
    assert rows.shape == (300, 3)
    assert 20 <= rows[:, 0].min() < 25 < 85 < rows[:, 0].max() <= 90
    assert all(set(rows[:, i].tolist()) == {0.0, 1.0} for i in (1, 2))
    assert sets[0].samples.transform is None
    assert "simulation" not in sets[0].notes[0]
    observed = read_tables({"a": patients(0), "b": patients(1)}, DataOptions())[0].train
    assert "only a simulation can see" in load_public(DEFAULT_PUBLIC, like=observed, size=10).notes[0]


def test_public_rows_of_a_file(tmp_path: Path) -> None:
    like = read_tables({"a": patients(0), "b": patients(1)}, DataOptions())[0].train
    patients(5)[["sex", "age"]].to_csv(tmp_path / "public.csv", index=False)
    public = load_public(str(tmp_path / "public.csv"), like=like)
    assert isinstance(public.samples, TableSet)
    assert public.samples.inputs[:, 2].isnan().all()
    assert torch.equal(public.samples.labels, torch.full((50,), -1))
    assert "public.csv lacks the columns smoker" in public.notes[0]
    with pytest.raises(UsageError, match="'photos' is neither 'column-ranges' nor a"):
        load_public("photos", like=like)
