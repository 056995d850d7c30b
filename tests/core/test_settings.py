"""The options of all methods: documented, checked, with one line for what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fedchoir import methods
from fedchoir.core.settings import Settings
from fedchoir.data.options import DataOptions
from fedchoir.utils.errors import UsageError

STABLE = {
    "local_epochs", "local_batch", "local_lr", "public_batch", "public_lr", "public_epochs", "public_size",
    "pretrain_epochs", "sync", "clients", "fraction", "beta", "private",
}  # fmt: skip
"""Names that users have in their files."""


def test_the_stable_names_exist() -> None:
    assert Settings.model_fields.keys() >= STABLE


def test_every_option_is_defined_once_and_described() -> None:
    groups = [base for base in Settings.__bases__ if base is not DataOptions]
    names = [name for group in (*groups, DataOptions) for name in group.model_fields]
    assert sorted(names) == sorted(set(names)) == sorted(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("name", methods.registry())
def test_every_option_of_every_method_is_described(name: str) -> None:
    fields = methods.get(name).Params.model_fields
    assert [option for option, field in fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"local_epochs": -1}, "local_epochs = -1 is not possible"),
        ({"local_batch": 1}, "local_batch = 1 is not possible: it should be greater than or equal to 2"),
        ({"sync": "sometimes"}, "sync = 'sometimes' is not possible: it should be 'batch' or 'epoch'"),
        ({"robust_share": 0.5}, "robust_share = 0.5 is not possible: it should be less than 0.5"),
        ({"locl_epochs": 3}, "there is no option 'locl_epochs'; did you mean local_epochs"),
    ],
)
def test_a_wrong_value_is_one_line_with_name_value_and_remedy(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        Settings(**options)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_cannot_change_during_a_run() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().local_epochs = 3  # type: ignore[misc]


def test_local_epochs_are_one_number_or_one_per_client_in_turn() -> None:
    assert [Settings(local_epochs="40,35,3").epochs_of(k) for k in range(5)] == [40, 35, 3, 40, 35]
    assert [Settings(local_epochs=(2, 1)).epochs_of(k) for k in range(3)] == [2, 1, 2]
    assert Settings(local_epochs=7).epochs_of(9) == 7


def test_the_learning_rate_falls_linearly_to_a_tenth() -> None:
    assert [Settings().lr(1.0, r, 10) for r in (0, 5, 10)] == [1.0, pytest.approx(0.55), pytest.approx(0.1)]
    assert Settings(lr_schedule="constant").lr(1.0, 9, 10) == 1.0
