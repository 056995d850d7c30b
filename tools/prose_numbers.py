"""Numbers in the text of the results pages, computed from the stored runs by Jinja2 expressions.

    FCCL+ reaches {{ inter("fccl+") }} %, {{ (inter("fccl+") - inter("fccl")) | interval }} points more than FCCL.

``intra(row)`` and ``inter(row)`` have one accuracy per seed and are shown as their mean. ``+ - * /`` with a number or
with another row give one number per seed that both have, and ``< <= > >=`` compare the means over these seeds.
``client=`` takes one client instead of the average, ``round=`` one round instead of the last three, ``paper=true`` the
published number.
``bytes(row)`` are the bytes of a run in both directions, ``seconds(row)`` how long it took.
A row is named by its label, in another section with the section's name before it: ``digits/fccl+``. Filters:
``signed``, ``interval`` (95 %, Student's t over seeds), ``digits(n)``. ``verdict(a, b, …)`` is "holds" if all
intervals are above zero, and names how many seeds would tell where they contain it. Both need two seeds or more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, TemplateError

from fedchoir.core.result import Result
from fedchoir.reporting.differences import MOST_SEEDS, mean_interval, seeds_needed
from fedchoir.reporting.run_groups import Row, rows
from fedchoir.reporting.store import evaluated, find_results
from fedchoir.utils.errors import UsageError


class BySeed:
    """Numbers of a row, one for each seed. Arithmetic with those of another row is over the seeds that both have, and a
    comparison is of the means over them.

    >>> digits(BySeed({0: 3.0, 1: 5.0, 2: 9.0}) - BySeed({1: 4.0, 2: 6.0}))
    '2.0'
    """

    def __init__(self, values: Mapping[int, float]) -> None:
        self.values = dict(sorted(values.items()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(list(self.values.values()), dtype=dtype)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values.values())

    def __neg__(self) -> BySeed:
        return self * -1

    def __add__(self, other: Any) -> BySeed:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> BySeed:
        return self._with(other, operator.sub)

    def __mul__(self, other: Any) -> BySeed:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Any) -> BySeed:
        return self._with(other, operator.truediv)

    def __rsub__(self, other: Any) -> BySeed:
        return -self + other

    def __rtruediv__(self, other: Any) -> BySeed:
        return self._with(other, lambda own, one: one / own)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> bool:
        return mean(self - other) < 0

    def __le__(self, other: Any) -> bool:
        return mean(self - other) <= 0

    def __gt__(self, other: Any) -> bool:
        return mean(self - other) > 0

    def __ge__(self, other: Any) -> bool:
        return mean(self - other) >= 0

    def _with(self, other: Any, operation: Callable[[float, Any], float]) -> BySeed:
        others = other.values if isinstance(other, BySeed) else dict.fromkeys(self.values, other)
        if not (common := self.values.keys() & others.keys()):
            raise UsageError("two rows have no seed in common")
        return BySeed({seed: operation(self.values[seed], others[seed]) for seed in common})


class Numbers:
    """Evaluates the expressions of a text with the rows below ``root``; each section is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._rows: dict[str, list[Row]] = {}
        self._environment = Environment(
            undefined=StrictUndefined, trim_blocks=True, finalize=lambda v: v if isinstance(v, str) else digits(v)
        )
        self._environment.filters |= {"digits": digits, "signed": signed, "interval": interval}
        self._environment.globals |= {"verdict": verdict}

    def render(self, text: str, within: str = "", **functions: Callable[..., str]) -> str:
        """Evaluate a text; labels without a section are those of the section ``within``."""
        functions |= {"intra": partial(self.get, "intra", within), "inter": partial(self.get, "inter", within)}
        functions |= {"bytes": partial(self.bytes, within), "seconds": partial(self.seconds, within)}
        try:
            return self._environment.from_string(text).render(functions)
        except (TemplateError, LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise UsageError(f"{within or 'results page'}: {error}") from None

    def get(
        self, metric: str, section: str, name: str, client: str = "", round: int | None = None, paper: bool = False
    ) -> Any:
        """Return an accuracy of every seed, or the published one; see above."""
        row = self.row(section, name)
        if not paper:
            return BySeed({run.seed: _accuracy(run, metric, client, round) for run in row.results})
        if (number := row.published.printed.get(metric)) is None:
            raise UsageError(f"no paper prints {metric} for {row.label}")
        return number.clients[_position(row.results[0], client)] if client else number.value

    def bytes(self, section: str, name: str) -> Any:
        """Return the bytes of a run in both directions, for every seed."""
        return BySeed({run.seed: run.bytes_up + run.bytes_down for run in self.row(section, name).results})

    def seconds(self, section: str, name: str) -> Any:
        """Return the seconds of a run, for every seed."""
        return BySeed({run.seed: run.seconds["total"] for run in self.row(section, name).results})

    def row(self, section: str, name: str) -> Row:
        """Return the row with this label."""
        first, _, label = name.partition("/")
        if label and (self.root / first).is_dir():
            section, name = first, label
        found = [row for row in self.rows(section) if row.label == name]
        if len(found) != 1:
            known = ", ".join(row.label for row in self.rows(section))
            raise UsageError(f"{len(found) or 'no'} rows are called {name!r} in {section}; there are {known}")
        return found[0]

    def rows(self, section: str) -> list[Row]:
        if section not in self._rows:
            self._rows[section] = rows(find_results([self.root / section]))
        return self._rows[section]


def _accuracy(run: Result, metric: str, client: str, round: int | None) -> float:
    scores = run.model_dump(include={"accuracy", "intra_avg", "inter_avg"})
    if round is not None:
        scores = {event["round"] + 1: event for event in evaluated(run)}[round]
    if not client:
        return float(scores[f"{metric}_avg"])
    row, own = scores["accuracy"][_position(run, client)], run.tests.index(client)
    return float(row[own]) if metric == "intra" else mean(row[:own] + row[own + 1 :])


def _position(run: Result, client: str) -> int:
    return [known["name"] for known in run.clients].index(client)


def digits(value: Any, count: int = 1, sign: str = "-") -> str:
    """Write the mean with so many decimals and a typographic minus, never as minus zero.

    >>> digits(np.array([1.0, 2.5])), digits(-0.04), digits(-2.5, 2)
    ('1.8', '0.0', '−2.50')
    """
    return f"{round(float(np.mean(np.asarray(value))), count) + 0.0:{sign}.{count}f}".replace("-", "−")


def signed(value: Any) -> str:
    return digits(value, sign="+")


def bounds(values: Any) -> tuple[float, float]:
    """Return the interval of numbers of several seeds."""
    if (numbers := np.atleast_1d(np.asarray(values))).size < 2:
        raise UsageError("an interval needs two seeds or more that all rows have; there is one")
    return mean_interval(numbers)


def interval(values: Any) -> str:
    """Write a difference with its interval.

    >>> interval(np.array([1.0, 2.0, 3.0]))
    '+2.0 (−0.5 to +4.5)'

    A bound below zero has a minus however near it is, because the claim depends on it:

    >>> interval(np.array([1.0, 1.2, 1.4]) - 0.714)
    '+0.5 (−0.0 to +1.0)'
    """
    low, high = (("−" if bound < 0 else "+") + digits(abs(bound)) for bound in bounds(values))
    return f"{signed(values)} ({low} to {high})"


def verdict(first: Any, *more: Any) -> str:
    """Return what the intervals say about the claim that every difference is above zero, and where they do not, how
    many seeds would tell if differences and standard deviations stay as they are.

    >>> verdict(np.array([1.0, 1.1, 1.2])), verdict(np.array([-1.0, 1.1, 1.2]))
    ('**holds**', 'cannot be told (35 seeds)')
    """
    differences = (first, *more)
    found = [bounds(difference) for difference in differences]
    if all(low > 0 for low, _ in found):
        return "**holds**"
    if any(high < 0 for _, high in found):
        return "**does not hold**"
    return f"cannot be told ({seeds_to_tell(*differences)} seeds)"


def seeds_to_tell(*differences: Any) -> str:
    """How many seeds would give intervals without zero; the largest number over the differences that have it inside."""
    wide = [d for d in differences if bounds(d)[0] <= 0 <= bounds(d)[1]]
    needed = [seeds_needed(float(np.mean(np.asarray(d))), float(np.std(np.asarray(d), ddof=1))) for d in wide]
    return f"more than {MOST_SEEDS}" if None in needed else str(max(n for n in needed if n is not None))
