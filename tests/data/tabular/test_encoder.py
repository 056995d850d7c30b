"""A client's encoder, compared with scikit-learn's transformers."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedchoir.data.tabular.cells import store
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.encoder import Encoder, Encoding
from fedchoir.utils.errors import UsageError

COLUMNS = (Column("age"), Column("sex", "boolean"), Column("cp", "categorical", ("a", "b", "c")))


def rows(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, count),
            "sex": rng.integers(0, 2, count).astype(float),
            "cp": rng.choice(["a", "b", "c"], count, p=[0.5, 0.3, 0.2]),
        }
    )
    return frame.mask(rng.random(frame.shape) < 0.1)


@pytest.mark.parametrize("drop_first", [False, True])
def test_equals_scikit_learn(drop_first: bool) -> None:
    train, test = rows(200, 0), rows(50, 1)
    reference = ColumnTransformer(
        [
            ("age", SimpleImputer(strategy="median"), ["age"]),
            ("sex", SimpleImputer(strategy="most_frequent"), ["sex"]),
            (
                "cp",
                make_pipeline(
                    SimpleImputer(strategy="most_frequent"),
                    OneHotEncoder(
                        categories=[["a", "b", "c"]], drop="first" if drop_first else None, sparse_output=False
                    ),
                ),
                ["cp"],
            ),
        ]
    )
    scaler = StandardScaler()
    scaler.fit(reference.fit_transform(train))
    correction = np.sqrt((len(train) - 1) / len(train))  # scikit-learn divides by N, not by N − 1
    encoder = Encoder.fit(store(train, COLUMNS, "train"), COLUMNS, Encoding(drop_first=drop_first))
    wanted = scaler.transform(reference.transform(test)) * correction
    assert np.allclose(encoder(store(test, COLUMNS, "test")).numpy(), wanted, atol=1e-5)
    assert encoder.names == ["age", "sex", *(["cp=b", "cp=c"] if drop_first else ["cp=a", "cp=b", "cp=c"])]


def test_unknown_categories_are_zero_and_constant_features_carry_nothing() -> None:
    columns = (Column("x"), Column("c", "categorical", ("a", "b")))
    train = torch.tensor([[3.0, 0], [3.0, 1], [3.0, 1]])
    encoder = Encoder.fit(train, columns, Encoding())
    raw = encoder(torch.tensor([[250.0, -1.0]]))  # another hospital's value of a column that is constant here
    zero = -torch.tensor(encoder.mean) * torch.tensor(encoder.gain)
    assert raw[0, 0] == 0
    assert torch.allclose(raw[0, 1:], zero[1:])


def test_all_missing_and_single_rows_give_finite_features() -> None:
    nothing = torch.full((4, 3), float("nan"))
    assert Encoder.fit(nothing, COLUMNS, Encoding())(nothing).isfinite().all()
    one = torch.tensor([[50.0, 1.0, 2.0]])
    assert Encoder.fit(one, COLUMNS, Encoding())(one).isfinite().all()


def test_missing_indicator_marks_missing_cells() -> None:
    frame = rows(40, 3)
    stored = store(frame, COLUMNS, "t")
    encoder = Encoder.fit(stored, COLUMNS, Encoding(missing_indicator=True))
    marks = encoder(stored)[:, -3:] > 0
    assert torch.equal(marks, torch.from_numpy(frame.isna().to_numpy()))
    assert encoder.names[-1] == "cp is missing"


def test_agreed_scaling_depends_on_no_data() -> None:
    columns = (Column("age", min=0, max=100), Column("sex", "boolean"), COLUMNS[2])
    encoding = Encoding(scaling="agreed")
    encoders = [Encoder.fit(store(rows(30, seed), columns, "t"), columns, encoding) for seed in (0, 1)]
    x = torch.tensor([[0.0, 0.0, 0.0], [100.0, 1.0, 1.0], [75.0, 1.0, 2.0]])
    wanted = torch.tensor([[-1.0, -1, 1, 0, 0], [1, 1, 0, 1, 0], [0.5, 1, 0, 0, 1]])
    for encoder in encoders:
        assert torch.allclose(encoder(x), wanted)
    with pytest.raises(UsageError, match="column age has no min and max"):
        Encoder.fit(x, COLUMNS, encoding)


def test_json_round_trip() -> None:
    encoder = Encoder.fit(store(rows(30, 0), COLUMNS, "t"), COLUMNS, Encoding(drop_first=True))
    assert Encoder.from_json(json.loads(json.dumps(encoder.to_json()))) == encoder


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(float("nan")), min_size=2, max_size=2), min_size=2))
def test_training_rows_have_mean_zero_and_unit_deviation(cells: list[list[float]]) -> None:
    columns = (Column("x"), Column("y"))
    stored = torch.tensor(cells, dtype=torch.float32)
    features = Encoder.fit(stored, columns, Encoding())(stored)
    assert features.isfinite().all()
    deviations = features.double().std(0)
    assert all(value < 1.01 for value in deviations.tolist())
