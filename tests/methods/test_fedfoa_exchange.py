"""The exchange of correlations on top of other methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.helpers import events
from tests.methods.ssl.one_client import one_client

from fedchoir import Experiment, run
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Small = Callable[..., Experiment]
N = 8  # dim of the small runs


@pytest.mark.parametrize("name", ["fedbyol", "fedu", "fedema", "fedmd-ssl"])
def test_fedfoa_stacks_on_top(name: str, small: Small) -> None:
    plain, stacked = small(name, "plain", rounds=2), small(name, "stacked", rounds=2, settings={"foa": True})
    extra = run(stacked).bytes_up - run(plain).bytes_up
    assert extra == 2 * 3 * N * N * 4
    assert "correlation_distance" in events(stacked)[-1]["measures"]
    assert events(plain)[-1]["measures"] == {}


def test_what_leaves_a_client_is_one_matrix_and_nothing_of_a_batch() -> None:
    method, client = one_client("fedfoa")
    method.local_update(client)
    payload = method.share_correlation(client)
    assert {name: tuple(t.shape) for name, t in payload.items()} == {"correlation": (8, 8)}
    assert payload.nbytes == 8 * 8 * 4
    assert not payload.scalars
    assert (payload["correlation"].tril(-1) == 0).all()


def test_received_correlations_are_used_and_dropped_without_new_ones() -> None:
    method, client = one_client("fedfoa", foa_weight=1.0)
    method.store_peers(client, Payload(correlations=100 * torch.eye(8)[None]))
    method.local_update(client)
    far = client.report()["local_loss"]
    method.store_peers(client, None)
    method.local_update(client)
    assert far > client.report()["local_loss"] + 50


def test_a_batch_smaller_than_dim_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^dim = 32 is not possible with foa: a has batches of 16 samples.*$"):
        one_client("fedfoa", dim=32)
    with pytest.raises(UsageError, match="a has batches of 10 samples"):
        one_client("fedfoa", dim=12, count=10)
    one_client("byol", dim=32)


def test_a_site_that_may_join_later_is_checked_when_it_does() -> None:
    method, client = one_client("fedfoa")
    absent = replace(method.spec, clients=(replace(method.spec.clients[0], train=0),))
    again = type(method)(method.params.model_copy(update={"dim": 32}), absent)
    with pytest.raises(UsageError, match=r"^dim = 32 is not possible with foa: a has batches of 16 samples"):
        again.local_update(client)
