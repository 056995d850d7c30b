"""One exchange has one sum: the record that a client keeps, also after it has lost everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedchoir.privacy.secure_aggregation.answers import Answers
from fedchoir.privacy.secure_aggregation.store import FolderStore
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(FolderStore(tmp_path))


def test_a_repeated_exchange_must_have_the_same_clients(answers: Answers, tmp_path: Path) -> None:
    answers.record((3, 1), [2, 0, 1], b"first")
    Answers(FolderStore(tmp_path)).record((3, 1), [0, 1, 2], b"second")  # a restarted node, the same clients
    answers.record((3, 2), [0, 1], b"third")  # another exchange
    for clients in ([0, 1], [0, 1, 2, 3]):
        with pytest.raises(SecureAggregationError, match=r"exchange 2 of round 4 was summed over .* \[0, 1, 2\]"):
            answers.record((3, 1), clients, b"fourth")


def test_clients_may_drop_out_of_the_first_sum_but_not_of_its_repetition(answers: Answers) -> None:
    answers.record((0, 0), [0, 1, 2, 3], b"first")
    answers.record((0, 0), [0, 1, 2], b"first")
    with pytest.raises(SecureAggregationError, match=r"over the clients \[0, 1, 2\] before"):
        answers.record((0, 0), [0, 1, 2, 3], b"second")
    answers.record((0, 0), [0, 1, 2], b"second")
    with pytest.raises(SecureAggregationError, match=r"over the clients \[0, 1, 2\] before"):
        answers.record((0, 0), [0, 1], b"second")


def test_the_sites_of_a_run_do_not_change(answers: Answers) -> None:
    answers.fix_sites(("a", "b", "c"))
    answers.fix_sites(["a", "b", "c"])
    for sites in (("a", "b", "c", "d"), ("a", "b"), ("b", "a", "c")):
        with pytest.raises(SecureAggregationError, match="the sites of this run are"):
            answers.fix_sites(sites)
