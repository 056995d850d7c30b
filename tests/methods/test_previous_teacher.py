"""The teacher is the client's model at the end of the previous round."""

from __future__ import annotations

import pytest
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make


@pytest.mark.parametrize("method", ["fccl", "fccl+", "fbcl"])
def test_the_teacher_is_the_model_of_the_previous_round(method: str, harness: Make) -> None:
    s = harness(method, PLAIN)
    s.run_rounds()
    ends = s.weights()
    s.run_rounds()
    assert equal([client.stored_weights("teacher") for client in s.clients], ends)


@pytest.mark.parametrize(("method", "off"), [("fbcl", {"use_cnd": False}), ("choir-v1", {"use_fntd": False})])
def test_no_teacher_is_stored_where_no_loss_uses_it(method: str, off: dict[str, bool], harness: Make) -> None:
    s = harness(method, PLAIN, **off)
    s.run_rounds()
    assert all("teacher" not in client.memory for client in s.clients)
