"""UCI Heart Disease: patients of four hospitals (Detrano et al., 1989; CC BY 4.0), cleaned and split as in FLamby.

FLamby (Ogier du Terrail et al., NeurIPS 2022) leaves out the columns slope, ca and thal, which most hospitals do not
have, and then every row with a missing value. The label is whether the disease is present. 66 % of the rows are for
training, in proportion to the labels, except in Switzerland, where one patient has no disease.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from fedchoir.data.tabular.column import Column

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "long-beach": "va"}
"""Name of the client → stem of its file."""
TARGET = "disease"
COLUMNS = (
    Column("age", min=20, max=90),
    Column("sex", "boolean"),
    Column("cp", "categorical", ("1", "2", "3", "4")),  # kind of chest pain
    Column("trestbps", min=80, max=220),  # blood pressure
    Column("chol", min=0, max=600),  # cholesterol; 0 in Switzerland, where it was not measured
    Column("fbs", "boolean"),  # fasting blood sugar above 120 mg/dl
    Column("restecg", "categorical", ("0", "1", "2")),
    Column("thalach", min=60, max=220),  # highest heart rate
    Column("exang", "boolean"),  # angina after exercise
    Column("oldpeak", min=-3, max=7),  # ST depression by exercise
)
"""What four hospitals would agree on: kinds, and ranges that hold for any patient."""
_LEFT_OUT = ["slope", "ca", "thal"]
_TRAIN_SHARE, _SPLIT_SEED = 0.66, 43  # FLamby's


def hospital(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The training and test rows of one hospital."""
    from sklearn.model_selection import train_test_split  # slow to import, as is pandas

    from fedchoir.data.tabular.files import read_table

    with as_file(files("fedchoir.data.tabular") / "heart_disease" / f"{HOSPITALS[name]}.csv") as path:
        rows = read_table(path).drop(columns=_LEFT_OUT).dropna().reset_index(drop=True)
    sick = rows.pop("num") > 0
    rows[TARGET] = sick.map({False: "absent", True: "present"})
    stratify = sick if sick.value_counts().min() > 2 else None
    train, test = train_test_split(
        rows, train_size=_TRAIN_SHARE, test_size=1 - _TRAIN_SHARE, random_state=_SPLIT_SEED, stratify=stratify
    )
    return train.sort_index(), test.sort_index()
