"""Options whose errors are one line."""

from __future__ import annotations

import pytest
from pydantic import Field, model_validator

from fedchoir.utils.errors import UsageError
from fedchoir.utils.options import Options


class Sizes(Options):
    width: int = Field(description="pixels in a row", ge=1)
    height: int = Field(2, description="pixels in a column")

    @model_validator(mode="after")
    def _check(self) -> Sizes:
        if self.width > self.height:
            raise ValueError("width should be at most height")
        return self


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"width": 0}, "width = 0 is not possible: it should be greater than or equal to 1"),
        ({"width": 1, "hight": 2}, "there is no option 'hight'; did you mean height"),
        ({"width": 1, "xyz": 2}, "there is no option 'xyz'; known: height, width"),
        ({}, "width is missing: pixels in a row"),
        ({"width": 3}, "width should be at most height"),
    ],
)
def test_a_wrong_value_is_one_line(values: dict[str, int], line: str) -> None:
    with pytest.raises(UsageError) as error:
        Sizes(**values)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_options_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Sizes(width=1).width = 2  # type: ignore[misc]
