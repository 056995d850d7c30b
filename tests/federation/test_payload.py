"""Payloads: declared, counted, checked, and never able to run anything."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.payload import Payload, PayloadError, check, declared_by, sends, state_payload

SAID = {"logits": "B C", "similarity": "B B-1"}
DIMS = {"B": 4, "C": 3}


def good() -> Payload:
    return Payload(logits=torch.randn(4, 3), similarity=torch.randn(4, 3))


def test_what_was_declared_passes() -> None:
    check(good(), SAID, DIMS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"logits": torch.randn(5, 3)}, r"logits has shape \(5, 3\), declared as B C = \(4, 3\)"),
        ({"similarity": torch.randn(4, 4)}, r"similarity has shape \(4, 4\), declared as B B-1 = \(4, 3\)"),
        ({"logits": torch.randn(4, 3, 1)}, "logits has 3 dimensions"),
        ({"logits": torch.randn(4, 3).double()}, "float64"),
        ({"images": torch.randn(4, 3)}, "tensor images was not declared"),
        ({"logits": torch.full((4, 3), float("nan"))}, "logits is not finite"),
        ({"logits": torch.full((4, 3), float("inf"))}, "logits is not finite"),
    ],
)
def test_anything_else_is_refused(change: dict[str, torch.Tensor], why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        check(Payload({**good(), **change}), SAID, DIMS)


def test_missing_tensors_and_undeclared_scalars_are_refused() -> None:
    with pytest.raises(PayloadError, match="tensor similarity is missing"):
        check(Payload(logits=torch.randn(4, 3)), SAID, DIMS)
    with pytest.raises(PayloadError, match="scalar age was not declared"):
        check(Payload(good(), scalars={"age": 40}), SAID, DIMS)
    with pytest.raises(PayloadError, match="loss is not finite"):
        check(Payload(scalars={"loss": float("nan")}), {"loss": "scalar"}, {})


def test_free_dimensions_must_agree_within_a_payload() -> None:
    said = {"a": "D", "b": "D D"}
    check(Payload(a=torch.ones(5), b=torch.ones(5, 5)), said, {})
    with pytest.raises(PayloadError, match="b has shape"):
        check(Payload(a=torch.ones(5), b=torch.ones(5, 6)), said, {})


def test_weights_are_checked_against_the_shared_architecture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = model.state_dict()
    check(state_payload("weights", state), {"weights": "model"}, {}, state)
    with pytest.raises(PayloadError, match=r"0\.weight has shape"):
        check(state_payload("weights", {**state, "0.weight": torch.ones(3, 3)}), {"weights": "model"}, {}, state)
    with pytest.raises(PayloadError, match="share none"):
        check(state_payload("weights", state), {"weights": "model"}, {}, None)


def test_a_function_without_a_declaration_cannot_speak() -> None:
    def share() -> None: ...

    with pytest.raises(TypeError, match="declares none"):
        declared_by(share)
    assert declared_by(sends(x="B")(share)) == {"x": "B"}


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.float64]),
    value=st.floats(-1e6, 1e6),
)
def test_bytes_round_trip(shape: list[int], dtype: torch.dtype, value: float) -> None:
    tensor = (torch.randn(shape) * 10).to(dtype)
    back = Payload.from_bytes(Payload({"a/b.c": tensor}, scalars={"v": value}).to_bytes())
    assert torch.equal(back["a/b.c"], tensor)
    assert back["a/b.c"].dtype == dtype
    assert back.scalars == {"v": value}


@pytest.mark.parametrize("raw", [b"", b"\x00" * 8, b"\xff" * 64, b"garbage that is no payload at all"])
def test_bytes_that_are_no_payload_are_refused(raw: bytes) -> None:
    with pytest.raises(PayloadError, match="not a payload"):
        Payload.from_bytes(raw)


class Bomb:
    ran = False

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("from tests.federation import test_payload; test_payload.Bomb.ran = True",))


def test_a_pickle_is_not_run() -> None:
    with pytest.raises(PayloadError):
        Payload.from_bytes(pickle.dumps(Bomb()))
    assert not Bomb.ran


def test_bytes_are_the_papers_cost_model() -> None:
    batch, classes = 256, 10
    payload = Payload(logits=torch.zeros(batch, classes), similarity=torch.zeros(batch, batch - 1))
    assert payload.nbytes == 4 * (batch * classes + batch * (batch - 1))
