"""Feed changed inputs to a parser. It may accept an input or refuse it in one line; anything else is a crash."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fuzz.mutations import mutate

SLOW_SECONDS = 5.0  # a parser that takes longer is as good as dead
MAX_KEPT = 20


@dataclass(frozen=True)
class Target:
    """A parser, valid inputs of it, the errors with which it may refuse one, and its share of all inputs."""

    name: str
    corpus: Sequence[bytes]
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    share: int = 1
    repair: Callable[[bytes], bytes] = bytes  # makes lengths and checksums fit again, for half of the inputs


@dataclass
class Outcome:
    """What became of the inputs."""

    name: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    crashes: int = 0
    kept: list[tuple[str, bytes]] = field(default_factory=list)  # tracebacks and inputs, one per kind

    @property
    def inputs(self) -> int:
        return self.accepted + self.refused + self.crashes


def fuzz(target: Target, count: int, seed: int) -> Outcome:
    rng, outcome, start = random.Random(f"{target.name} {seed}"), Outcome(target.name), time.perf_counter()
    kinds: set[str] = set()
    for data in target.corpus:
        target.parse(data)  # the corpus itself is valid
    signal.signal(signal.SIGALRM, _too_slow)
    for _ in range(count):
        data = mutate(rng, target.corpus)
        if rng.random() < 0.5:
            data = target.repair(data)
        signal.setitimer(signal.ITIMER_REAL, SLOW_SECONDS)
        try:
            target.parse(data)
            outcome.accepted += 1
        except target.refusals as error:
            if "\n" in str(error):
                _keep(outcome, kinds, f"{type(error).__name__}: several lines: {error}", data)
            else:
                outcome.refused += 1
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            _keep(outcome, kinds, f"{type(error).__name__} {frame.filename}:{frame.lineno}", data, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _keep(outcome: Outcome, kinds: set[str], kind: str, data: bytes, error: Exception | None = None) -> None:
    outcome.crashes += 1
    if kind not in kinds and len(kinds) < MAX_KEPT:
        kinds.add(kind)
        outcome.kept.append(("".join(traceback.format_exception(error)) if error else kind, data))


def _too_slow(*_: object) -> None:
    raise AssertionError(f"the parser took longer than {SLOW_SECONDS:g} s")
