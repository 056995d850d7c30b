"""Domains: the training and test samples of one source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedchoir.data.samples import Samples
from fedchoir.data.splits import held_out
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

SPLIT_SEED = 0  # held-out splits do not depend on a run's seed, so that runs are comparable

Progress = Callable[[int, int, str], None]
"""Called with samples read, all samples, and the name of the data set."""


@dataclass(frozen=True)
class Raw:
    """Samples as found on disk; ``test`` is None where there is no test split."""

    train: Samples
    test: Samples | None
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Domain:
    """Training and test samples of one domain; labels are positions in ``classes``.

    Attributes:
        own_test: the data set has its own test split; otherwise it was held out here.
        notes: facts that qualify a result.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    own_test: bool = True
    notes: tuple[str, ...] = ()


def domain_from(raw: Raw, name: str, notes: tuple[str, ...] = ()) -> Domain:
    """A domain with its own test split, or with 20 % of every class held out."""
    notes += raw.notes
    if raw.test is not None:
        if raw.test.input_spec != raw.train.input_spec:
            raise UsageError(
                f"{name}: its test samples are {raw.test.input_spec}, but its training samples {raw.train.input_spec}"
            )
        return Domain(name, raw.train, raw.test.for_every_client(), raw.classes, True, notes)
    train, test = held_out(raw.train, generator(SPLIT_SEED, "held-out", name))
    if not len(test):
        raise UsageError(f"{name}: {len(raw.train)} samples are too few to hold some out for testing; add a test split")
    return Domain(name, train, test, raw.classes, False, notes)
