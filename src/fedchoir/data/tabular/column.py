"""One column of a table, as the clients agree on it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

Kind = Literal["numeric", "boolean", "categorical", "date"]
Alignment = Literal["by-name", "strict"]
Scaling = Literal["own", "agreed"]


@dataclass(frozen=True)
class Column:
    """One column that all clients have.

    Attributes:
        kind: a ``date`` is stored as days since 1970-01-01.
        categories: of a categorical column; a cell is stored as the position of its category.
        min: the smallest value of a numeric column. Public samples are drawn from this range.
        max: the largest one.
        observed: whether all of this was found in the data of all clients, which only a simulation can see.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=False)

    name: str
    kind: Kind = "numeric"
    categories: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    observed: bool = False

    def __post_init__(self) -> None:
        if self.kind == "categorical" and not self.categories:
            raise ValueError(f"column {self.name}: a categorical column needs its categories")
        if (self.min is None) != (self.max is None) or (
            self.min is not None and self.max is not None and not self.min < self.max
        ):
            raise ValueError(f"column {self.name}: min and max should be two numbers, min below max")

    @property
    def range(self) -> tuple[float, float] | None:
        """The smallest and largest value; None where they are not known."""
        if self.kind == "boolean":
            return 0.0, 1.0
        return None if self.min is None or self.max is None else (self.min, self.max)


def key(name: object) -> str:
    """What is compared when columns or categories are aligned by name.

    >>> key(" Age ") == key("age")
    True
    """
    return str(name).strip().casefold()
