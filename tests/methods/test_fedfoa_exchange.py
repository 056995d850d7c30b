"""The exchange of correlations on top of other methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.helpers import events
from tests.methods.ssl.one_client import one_client

from fedchoir import Experiment, run
from fedchoir.core.actions import Exchange
from fedchoir.core.exchange import Reply, find_fault
from fedchoir.losses import feature_correlation, mutual_understanding
from fedchoir.methods.ssl.correlations import scaled, square, upper
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Small = Callable[..., Experiment]
N = 8  # dim of the small runs
ENTRIES = N * (N + 1) // 2  # of a triangular matrix


@pytest.mark.parametrize("name", ["fedbyol", "fedu", "fedema", "fedmd-ssl"])
def test_fedfoa_stacks_on_top(name: str, small: Small) -> None:
    plain, stacked = small(name, "plain", rounds=2), small(name, "stacked", rounds=2, settings={"foa": True})
    extra = run(stacked).bytes_up - run(plain).bytes_up
    assert extra == 2 * 3 * ENTRIES * 4
    assert "correlation_distance" in events(stacked)[-1]["measures"]
    assert events(plain)[-1]["measures"] == {}


def test_what_leaves_a_client_is_one_matrix_and_nothing_of_a_batch() -> None:
    method, client = one_client("fedfoa")
    method.local_update(client)
    payload = method.share_correlation(client)
    assert {name: tuple(t.shape) for name, t in payload.items()} == {"correlation": (ENTRIES,)}
    assert payload.nbytes == ENTRIES * 4
    assert not payload.scalars
    mean = method.correlations(client).mean()
    assert (mean.tril(-1) == 0).all()  # nothing is lost
    assert torch.equal(square(payload["correlation"], N), mean)


def test_received_correlations_are_used_and_dropped_without_new_ones() -> None:
    method, client = one_client("fedfoa", foa_weight=1.0)
    method.store_peers(client, Payload(correlations=upper(100 * torch.eye(8)[None])))
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


def test_a_payload_of_other_than_the_triangles_size_is_refused() -> None:
    method, client = one_client("fedfoa")
    method.local_update(client)
    exchange = next(method.share_correlations())
    assert isinstance(exchange, Exchange)
    right = method.share_correlation(client)
    assert find_fault(Reply(0, [right]), exchange, method.spec.dims, None) == ""
    whole = Payload(correlation=torch.eye(N))
    assert "declared as T" in find_fault(Reply(0, [whole]), exchange, method.spec.dims, None)
    long = Payload(correlation=torch.zeros(ENTRIES + 1))
    assert "declared as T = (36,)" in find_fault(Reply(0, [long]), exchange, method.spec.dims, None)
    bad = Payload(correlation=torch.full((ENTRIES,), float("nan")))
    assert "not finite" in find_fault(Reply(0, [bad]), exchange, method.spec.dims, None)
    with pytest.raises(ValueError, match="36 entries, not 37"):  # from a server
        method.store_peers(client, Payload(correlations=torch.zeros(2, ENTRIES + 1)))


def test_with_a_projector_behind_z_the_term_is_met_without_the_encoder() -> None:
    """The finding: Z ← Z·R_z⁻¹R_j in the calibration, its inverse in the projector. ℓ_A becomes 0, and neither features
    nor projections change. Where Z itself is the projection there is no place for the inverse."""
    for projector in ("mlp", "linear"):
        _, client = one_client("byol", projector=projector)
        client.model.double().eval()
        client.modules.double().eval()
        x = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        calibration, head = client.modules["calibration"], client.modules["projector"]
        with torch.no_grad():
            h = client.model.features(x)
            z = calibration(h)
            before = head(z)
            other = torch.randn(40, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            r_z, r_j = feature_correlation(z), feature_correlation(3 * other)
            m = torch.linalg.solve(r_z, r_j)  # R_z⁻¹ R_j
            assert mutual_understanding(z, r_j) > 5
            calibration.weight.copy_(m.T @ calibration.weight)
            calibration.bias.copy_(m.T @ calibration.bias)
            if projector == "mlp":
                first = next(layer for layer in head.modules() if isinstance(layer, torch.nn.Linear))
                first.weight.copy_(torch.linalg.solve(m, first.weight.T).T)
            moved = calibration(h)
            assert mutual_understanding(moved, r_j) < 1e-6
            assert torch.equal(client.model.features(x), h)
            change = (head(moved) - before).abs().max()
        assert change < 1e-9 if projector == "mlp" else change > 1


def test_centred_features_have_no_mean() -> None:
    z = 5 + torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    centred = scaled(z, "centred")
    torch.testing.assert_close(centred.mean(dim=0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(centred.norm(dim=0), torch.ones(4))
    assert torch.equal(scaled(z, "raw"), z)
    # half and more of a feature's length may be the mean: it makes features look dependent
    assert feature_correlation(scaled(z, "unit")).trace() < feature_correlation(centred).trace()
