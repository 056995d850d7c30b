"""A share of `make fuzz` in every run of the tests: no parser crashes, whatever it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.__main__ import count_of
from tests.fuzz.loop import Target, fuzz
from tests.fuzz.targets import all_targets, folder_in_memory

INPUTS = 20_000
NAMES = (
    "compressed payload",
    "reply", "payload", "request", "request with weights", "site information", "federation.toml", "experiment.toml",
    "checkpoint", "privacy budget", "events.jsonl", "public key", "private key", "certificate", "npz", "npy", "csv",
)  # fmt: skip


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, Target]]:
    with folder_in_memory() as folder:
        yield {target.name: target for target in all_targets(Path(folder))}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_no_input_crashes_a_parser(name: str, targets: dict[str, Target]) -> None:
    assert set(targets) == set(NAMES)
    outcome = fuzz(targets[name], count_of(targets[name], list(targets.values()), INPUTS), seed=0)
    assert not outcome.crashes, outcome.kept[0]
    assert outcome.accepted  # the mutations are small enough that some inputs stay valid


def test_a_crash_is_found_and_kept() -> None:
    def careless(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError(data[0])
        if b"\x00" in data:
            raise ValueError("two\nlines")

    outcome = fuzz(Target("careless", [b"plain"], careless, (ValueError,)), 2_000, seed=0)
    assert outcome.crashes
    assert {why.split(":")[0].splitlines()[0] for why, _ in outcome.kept} == {
        "Traceback (most recent call last)",
        "ValueError",
    }
    assert outcome.inputs == 2_000
