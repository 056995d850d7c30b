"""Payloads: declared, counted, checked, and never executed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.payload import (
    KEPT,
    MODEL,
    MODULE,
    Payload,
    PayloadError,
    check,
    declared_by,
    load_tensors,
    save_tensors,
    sends,
    state_payload,
    zero_payload,
)
from fedchoir.utils.errors import UsageError

DECLARED = {"logits": "B C", "similarity": "B B-1"}
DIMS = {"B": 4, "C": 3}


def good() -> Payload:
    return Payload(logits=torch.randn(4, 3), similarity=torch.randn(4, 3))


def test_a_declared_payload_passes() -> None:
    check(good(), DECLARED, DIMS)


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
        check(Payload({**good(), **change}), DECLARED, DIMS)


def test_missing_tensors_and_undeclared_scalars_are_refused() -> None:
    with pytest.raises(PayloadError, match="tensor similarity is missing"):
        check(Payload(logits=torch.randn(4, 3)), DECLARED, DIMS)
    with pytest.raises(PayloadError, match="scalar age was not declared"):
        check(Payload(good(), scalars={"age": 40}), DECLARED, DIMS)
    with pytest.raises(PayloadError, match="loss is not finite"):
        check(Payload(scalars={"loss": float("nan")}), {"loss": "scalar"}, {})


def test_free_dimensions_must_agree_within_a_payload() -> None:
    declared = {"a": "D", "b": "D D"}
    check(Payload(a=torch.ones(5), b=torch.ones(5, 5)), declared, {})
    with pytest.raises(PayloadError, match="b has shape"):
        check(Payload(a=torch.ones(5), b=torch.ones(5, 6)), declared, {})


def test_weights_are_checked_against_the_shared_architecture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state = model.state_dict()
    check(state_payload("weights", state), {"weights": "model"}, {}, state)
    with pytest.raises(PayloadError, match=r"0\.weight has shape"):
        check(state_payload("weights", {**state, "0.weight": torch.ones(3, 3)}), {"weights": "model"}, {}, state)
    with pytest.raises(PayloadError, match="clients have different ones"):
        check(state_payload("weights", state), {"weights": "model"}, {}, None)


def test_a_function_without_a_declaration_cannot_send() -> None:
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


def test_bytes_are_the_papers_cost_model() -> None:
    batch, classes = 256, 10
    payload = Payload(logits=torch.zeros(batch, classes), similarity=torch.zeros(batch, batch - 1))
    assert payload.nbytes == 4 * (batch * classes + batch * (batch - 1))


def test_only_and_under_select_by_name_and_prefix() -> None:
    payload = Payload({"weights/bias": torch.ones(2), "logits": torch.zeros(1)}, scalars={"weights": 1.0, "loss": 2.0})
    assert list(payload.under("weights")) == ["bias"]
    assert list(payload.only("weights")) == ["weights/bias"]
    assert payload.only("weights").scalars == {"weights": 1.0}
    assert list(payload.only("logits")) == ["logits"]


def test_a_payload_has_no_gradients() -> None:
    assert not Payload(x=torch.ones(2, requires_grad=True) * 2)["x"].requires_grad


def test_a_state_payload_is_a_copy() -> None:
    state = {"bias": torch.ones(2)}
    payload = state_payload("weights", state)
    state["bias"].zero_()
    assert payload["weights/bias"].tolist() == [1.0, 1.0]


def test_tensors_that_share_memory_survive_a_file(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    save_tensors(tmp_path / "t.safetensors", {"a": shared, "b": shared, "row": shared.view(2, 2).t()})
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert torch.equal(loaded["a"], loaded["b"])
    assert loaded["row"].tolist() == [[0.0, 2.0], [1.0, 3.0]]
    with pytest.raises(UsageError, match=r"missing\.safetensors"):
        load_tensors(tmp_path / "missing.safetensors")


# -- declarations ------------------------------------------------------------------------------------------------------


def test_dimensions_dtypes_and_arithmetic() -> None:
    declared = {"counts": "C:int64", "pairs": "B*2 2", "row": "C+1", "single": ""}
    payload = Payload(
        counts=torch.ones(3, dtype=torch.int64), pairs=torch.ones(8, 2), row=torch.ones(4), single=torch.tensor(1.0)
    )
    check(payload, declared, DIMS)
    with pytest.raises(PayloadError, match=r"counts is torch.float32, declared as torch.int64"):
        check(Payload({**payload, "counts": torch.ones(3)}), declared, DIMS)


@pytest.mark.parametrize(("declaration", "why"), [("B C-", "cannot read the dimension 'C-'"), ("D-1", "not known yet")])
def test_a_declaration_that_cannot_be_read_is_a_bug(declaration: str, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        check(Payload(x=torch.ones([4] * len(declaration.split()))), {"x": declaration}, {"B": 4})


def test_modules_are_checked_by_name() -> None:
    modules = {"projector.weight": torch.ones(2, 3), "predictor.weight": torch.ones(2, 2)}
    sent = Payload({"projector/weight": torch.ones(2, 3)})
    check(sent, {"projector": MODULE}, {}, modules=modules)
    with pytest.raises(PayloadError, match="tensor predictor/weight is missing"):
        check(sent, {"projector": MODULE, "predictor": MODULE}, {}, modules=modules)


def test_a_tensor_of_the_model_may_be_declared_to_stay() -> None:
    model = {"w": torch.zeros(2, 3), "bn.weight": torch.zeros(2), "bn.bias": torch.zeros(2)}
    declared = {"weights": MODEL, "weights/bn.weight": KEPT, "weights/bn.bias": KEPT}
    check(Payload({"weights/w": model["w"]}), declared, {}, model)
    assert set(zero_payload(declared, {}, model)) == {"weights/w"}
    with pytest.raises(PayloadError, match=r"tensor weights/bn\.bias was not declared"):
        check(Payload({"weights/w": model["w"], "weights/bn.bias": model["bn.bias"]}), declared, {}, model)


class Sender:
    """What it sends depends on an option."""

    def __init__(self, similarities: bool) -> None:
        self.similarities = similarities

    def fields(self) -> dict[str, str]:
        return {"logits": "B C", **({"similarity": "B B-1"} if self.similarities else {})}

    @sends(fields)
    def share(self) -> None: ...

    @sends(logits="B C")
    def share_logits(self) -> None: ...


def test_a_declaration_may_be_computed_from_the_options() -> None:
    assert declared_by(Sender(True).share) == {"logits": "B C", "similarity": "B B-1"}
    assert declared_by(Sender(False).share) == declared_by(Sender(True).share_logits) == {"logits": "B C"}


def test_a_declaration_cannot_be_changed_by_its_reader() -> None:
    declared_by(Sender(True).share_logits).clear()
    assert declared_by(Sender(True).share_logits) == {"logits": "B C"}


@pytest.mark.parametrize(("value", "why"), [(math.nan, "not finite"), (-math.inf, "not finite"), (2e9, "is allowed")])
def test_numbers_are_finite_and_of_a_plausible_size(value: float, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        check(Payload(x=torch.tensor([0.0, value])), {"x": "N"}, {})
    with pytest.raises(PayloadError, match=why):
        check(Payload(scalars={"loss": value}), {"loss": "scalar"}, {})
    check(Payload(x=torch.tensor([-1e9, 1e9]), n=torch.tensor([10**9])), {"x": "N", "n": "M:int64"}, {})
    with pytest.raises(PayloadError, match="is allowed"):
        check(Payload(n=torch.tensor([10**15])), {"n": "M:int64"}, {})
