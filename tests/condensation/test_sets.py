"""Hostile condensed sets, from clients and from servers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fedchoir.condensation.sets import check_public, check_received, find_fault, join_sets, repeated
from fedchoir.payload import Payload, PayloadError
from fedchoir.utils.input_spec import InputSpec

TABLE, IMAGE, TEXT = InputSpec("table", (5,)), InputSpec.image(4), InputSpec("text", (3,), vocabulary=50)


def sent(**changes: Any) -> Payload:
    return Payload({"condensed": torch.zeros(3, 2, 5), "owned": torch.tensor([1.0, 0.0, 1.0]), **changes})


def probabilities(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)


def test_a_proper_set_has_no_fault() -> None:
    assert find_fault(sent(), TABLE) == ""
    assert find_fault(sent(soft=probabilities(3, 2, 1, 3)), TABLE) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"owned": torch.tensor([0.5, 0, 1])}, "owned has a number that is neither 0 nor 1"),
        ({"condensed": torch.full((3, 2, 5), 21.0)}, "condensed has a number beyond ±20 standard units"),
        ({"soft": torch.full((3, 2, 1, 3), 0.5)}, "soft has rows that are no probabilities"),
        ({"soft": torch.tensor([-1.0, 1.0, 1.0]).expand(3, 2, 1, 3)}, "soft has rows that are no probabilities"),
    ],
)
def test_faults_of_clients(changes: dict[str, Any], why: str) -> None:
    assert find_fault(sent(**changes), TABLE) == why


def test_sets_are_joined_without_classes_that_nobody_owns() -> None:
    joined = join_sets([sent(), sent(owned=torch.tensor([0.0, 1.0, 0.0]))], TABLE)
    assert joined["labels"].tolist() == [0, 0, 2, 2, 1, 1]
    assert joined["samples"].shape == (6, 5)
    check_received(joined, TABLE, classes=3, tiles=1)
    empty = join_sets([], IMAGE)
    assert empty["samples"].shape == (0, 3, 4, 4)
    check_received(empty, IMAGE, classes=3, tiles=1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"samples": torch.zeros(6, 4)}, "do not fit table 5"),
        ({"samples": torch.zeros(6, 5, dtype=torch.float64)}, "do not fit table 5"),
        ({"samples": torch.full((6, 5), torch.nan)}, "beyond ±20"),
        ({"samples": torch.full((6, 5), -1e8)}, "beyond ±20"),
        ({"samples": torch.zeros(100_001, 5), "labels": torch.zeros(100_001, dtype=torch.int64)}, "do not fit table 5"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "labels of condensed samples do not fit"),
        ({"labels": torch.full((6,), 3)}, "not one of 3 classes"),
        ({"labels": torch.full((6,), -1)}, "not one of 3 classes"),
        ({"soft": probabilities(6, 2, 3)}, "soft labels of condensed samples do not fit"),
        ({"soft": torch.zeros(6, 1, 3)}, "soft labels of condensed samples do not fit"),
        ({"program": torch.zeros(1)}, "condensed samples with their labels were expected"),
    ],
)
def test_faults_of_servers(changes: dict[str, Any], why: str) -> None:
    good = {"samples": torch.zeros(6, 5), "labels": torch.arange(6) % 3}
    with pytest.raises(PayloadError, match=why):
        check_received(Payload({**good, **changes}), TABLE, classes=3, tiles=1)
    with pytest.raises(PayloadError, match="were expected"):
        check_received(Payload(samples=good["samples"]), TABLE, classes=3, tiles=1)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (Payload(samples=torch.zeros(5, 5)), "a public set of 6 condensed samples was expected"),
        (Payload(samples=torch.zeros(6, 5), labels=torch.zeros(6)), "a public set of 6 condensed samples was expected"),
        (Payload(samples=torch.zeros(6, 4)), "do not fit table 5"),
        (Payload(samples=torch.full((6, 5), torch.nan)), "beyond ±20"),
        (Payload(samples=torch.full((6, 5), 20.5)), "beyond ±20"),
    ],
)
def test_faults_of_public_sets(payload: Payload, why: str) -> None:
    check_public(Payload(samples=torch.zeros(6, 5)), TABLE, count=6)
    with pytest.raises(PayloadError, match=why):
        check_public(payload, TABLE, count=6)


def test_samples_are_repeated_in_turn() -> None:
    rows = torch.arange(6).view(3, 2)
    assert repeated(rows, 7).tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5], [0, 1]]
    assert torch.equal(repeated(rows, 3), rows)
    assert repeated(rows[:0], 7).shape == (0, 2)


BAD_TEXTS = [
    ([1, 50, 0], "a token id outside the vocabulary of 50"),
    ([-1, 2, 0], "a token id outside the vocabulary of 50"),
    ([1, 0, 2], r"padding \(0\) before a token"),
    ([0, 0, 0], "a text without tokens"),
]


@pytest.mark.parametrize(("text", "why"), BAD_TEXTS)
def test_faults_of_texts(text: list[int], why: str) -> None:
    good = torch.tensor([4, 5, 0], dtype=torch.int32)
    bad = torch.tensor(text, dtype=torch.int32)
    owned = torch.tensor([1.0, 0.0])
    assert find_fault(Payload(condensed=torch.stack([good, bad])[:, None], owned=owned), TEXT) == ""  # it is dropped
    found = find_fault(Payload(condensed=torch.stack([bad, good])[:, None], owned=owned), TEXT)
    assert re.fullmatch(f"condensed has {why}", found)
    with pytest.raises(PayloadError, match=f"a condensed sample has {why}"):
        check_received(Payload(samples=torch.stack([good, bad]), labels=torch.tensor([0, 1])), TEXT, classes=2, tiles=1)


def test_texts_are_int32() -> None:
    received = join_sets([Payload(condensed=torch.ones(2, 1, 3, dtype=torch.int32), owned=torch.ones(2))], TEXT)
    check_received(received, TEXT, classes=2, tiles=1)
    with pytest.raises(PayloadError, match="do not fit text 3"):
        check_received(Payload({**received, "samples": received["samples"].long()}), TEXT, classes=2, tiles=1)
    nobody = Payload(condensed=torch.zeros(2, 1, 3, dtype=torch.int32), owned=torch.zeros(2))
    assert find_fault(nobody, TEXT) == ""
    check_received(join_sets([nobody], TEXT), TEXT, classes=2, tiles=1)
