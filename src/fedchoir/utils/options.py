"""Options as pydantic models whose errors are one line for the user."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedchoir.utils.errors import UsageError


class Options(BaseModel):
    """Frozen options. A wrong value raises a `UsageError` that names the option, the value and what would be right."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    if not TYPE_CHECKING:  # a type checker sees the signature that pydantic generates

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise UsageError(one_line(error, type(self))) from None


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong."""
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), UsageError):
        return str(cause)  # it is a complete message
    right = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if not first["loc"]:  # a check of several options has a complete message
        return right
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, model.model_fields, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(model.model_fields))}"
        return f"there is no option {name!r}; {hint}"
    if first["type"] == "missing":
        return f"{name} is missing: {model.model_fields[name].description}"
    return f"{name} = {first['input']!r} is not possible: it should be {right}"


def split_numbers(value: Any) -> Any:
    """``"40,35,0.5"`` as a tuple of numbers; any other value as it is.

    >>> split_numbers("40,35,0.5"), split_numbers(7)
    ((40, 35, 0.5), 7)
    """
    if isinstance(value, str) and "," in value:
        return tuple(float(v) if "." in v else int(v) for v in value.replace(" ", "").strip(",").split(","))
    return value
