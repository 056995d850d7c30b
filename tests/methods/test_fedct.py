"""FedCT: assignment, fused prototypes and the loss of eq. 13 by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.cross_training import CLASSES, MODEL, a_client, a_method
from torch.nn.functional import cross_entropy, normalize

from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.core.training import Batch
from fedchoir.methods.fedct import FedCT
from fedchoir.models import build
from fedchoir.payload import Payload
from fedchoir.utils.input_spec import InputSpec


def a_batch(method: FedCT, known: tuple[bool, ...] = (True,) * 4 + (False,)) -> tuple[Client, Batch]:
    client = a_client(method)
    torch.manual_seed(11)
    client.memory["prototypes"] = torch.randn(CLASSES, client.model.feature_dim).abs()
    client.memory["known"] = torch.tensor(known)
    client.memory["order"] = torch.tensor(sorted(range(CLASSES), key=lambda c: not known[c]))
    client.model.eval()
    return client, Batch(torch.randn(6, 3, 16, 16), torch.tensor([0, 1, 2, 3, 3, 1]))


def by_hand(client: Client, batch: Batch, p: Any, known: list[int]) -> dict[str, float]:
    """CE, APCL and L_mix sample by sample."""
    u = client.memory["prototypes"]
    h, z = client.model.features_and_logits(batch.inputs)
    contrast, mixed, partners = [], [], []
    for b, y in enumerate(batch.labels.tolist()):
        hybrid = h[b] + p.lambda_hy * (h[b] - u[y])
        cosines = {k: float(normalize(hybrid, dim=0) @ normalize(u[k], dim=0)) / p.tau2 for k in known}
        contrast.append(np.log(sum(np.exp(v) for v in cosines.values())) - cosines[y])
        other = h[b - 1], int(batch.labels[b - 1])
        proto = u[known[b % len(known)]], known[b % len(known)]
        for store, (f, label) in ((mixed, other), (partners, proto)):
            logits = client.model.classify(p.lambda_mix * h[b] + (1 - p.lambda_mix) * f)
            log_p = torch.log_softmax(logits, 0)
            store.append(-float(p.lambda_mix * log_p[y] + (1 - p.lambda_mix) * log_p[label]))
    return {
        "ce": float(cross_entropy(z, batch.labels)),
        "apcl": float(np.mean(contrast)),
        "samples": float(np.mean(mixed)),
        "prototypes": float(np.mean(partners)),
    }


@pytest.mark.parametrize("model", [MODEL, "alexnet@4"])  # the second has dropout in its classifier
def test_the_consistency_matrix_is_each_classifier_on_each_set_of_prototypes(model: str) -> None:
    cards = tuple(ClientInfo(f"c{k}", model, 10, 10, "global") for k in range(3))
    method = a_method()
    method.spec = replace(method.spec, clients=cards, inputs=InputSpec.image(32))
    heads, aggregated = [], {}
    for k in range(3):
        torch.manual_seed(k)
        copy = build(model, CLASSES, InputSpec.image(32)).eval()
        heads.append(copy)
        u = torch.randn(CLASSES, copy.feature_dim)
        present = torch.tensor([k != 0, True, False, k != 1, k == 2])
        weights = {f"weights/{n}": t for n, t in copy.state_dict().items()}
        aggregated[k] = Payload(weights, prototypes=u, present=present)
    v = method.consistency(aggregated)
    for i in range(3):
        for j in range(3):
            kept = aggregated[j]["present"].nonzero().flatten()
            with torch.no_grad():
                expected = cross_entropy(heads[i].classify(aggregated[j]["prototypes"][kept]), kept)
            torch.testing.assert_close(v[i, j], expected)


def test_models_go_where_the_matrix_says() -> None:
    v = torch.tensor([[0.0, 1.0, 9.0, 9.0], [9.0, 0.0, 1.0, 9.0], [9.0, 9.0, 0.0, 1.0], [1.0, 9.0, 9.0, 0.0]])
    aggregated = {
        k: Payload(prototypes=torch.full((5, 2), float(k)), present=torch.ones(5).bool()) for k in (3, 5, 7, 9)
    }
    totals = {}
    for rule in ("consistency", "inconsistency", "random"):
        method = a_method(clients=10, broadcast=rule)
        method.consistency = lambda models: v
        (sent,) = method.broadcast(aggregated, 0, 0)
        where = {int(p["prototypes"][0, 0]): target for target, p in sent.items()}
        assert sorted(where) == sorted(sent) == [3, 5, 7, 9]
        assert all(source != target for source, target in where.items())
        keys = list(aggregated)
        totals[rule] = sum(float(v[keys.index(a), keys.index(b)]) for a, b in where.items())
    assert totals["consistency"] == 4.0
    assert totals["inconsistency"] == 36.0
    assert totals["consistency"] <= totals["random"] <= totals["inconsistency"]


def test_global_prototypes_are_the_mean_over_those_who_have_the_class() -> None:
    method = a_method(broadcast="random", lambda_fuse=0.25)
    one = Payload(
        prototypes=torch.tensor([[1.0], [5.0], [0.0], [0.0], [0.0]]), present=torch.tensor([1, 1, 0, 0, 0]) > 0
    )
    two = Payload(
        prototypes=torch.tensor([[3.0], [0.0], [7.0], [0.0], [0.0]]), present=torch.tensor([1, 0, 1, 0, 0]) > 0
    )
    (sent,) = method.broadcast({0: one, 1: two}, 0, 0)
    for target, source in ((0, two), (1, one)):
        received = sent[target]
        assert received["global_prototypes"].flatten().tolist() == [2.0, 5.0, 7.0, 0.0, 0.0]
        assert received["known"].tolist() == [True, True, True, False, False]
        assert torch.equal(received["prototypes"], source["prototypes"])
    guides = method.prototypes(sent[1])  # with one's own view of classes 0 and 1, and the global one of class 2
    assert guides["prototypes"].flatten().tolist() == [0.25 * 2 + 0.75 * 1, 5.0, 7.0, 0.0, 0.0]
    assert guides["known"].tolist() == [True, True, True, False, False]
    assert guides["order"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mix_with", ["samples", "prototypes", "both"])
def test_the_loss_is_equation_13(mix_with: str) -> None:
    options = {"kappa": 2.0, "eta": 0.3, "tau2": 0.4, "lambda_hy": 0.3, "lambda_mix": 0.7, "mix_with": mix_with}
    method = a_method(**options)
    client, batch = a_batch(method)
    with torch.no_grad():
        part = by_hand(client, batch, method.params, [0, 1, 2, 3])
        mix = (part["samples"] + part["prototypes"]) / 2 if mix_with == "both" else part[mix_with]
        expected = part["ce"] + 2.0 * part["apcl"] + 0.3 * mix
        assert float(method.cross_loss(client, batch)) == pytest.approx(expected, rel=1e-5)
        for off, left in (("use_apcl", part["ce"] + 0.3 * mix), ("use_mfa", part["ce"] + 2.0 * part["apcl"])):
            other = a_method(**options, **{off: False})
            assert float(other.cross_loss(client, batch)) == pytest.approx(left, rel=1e-5)


def test_a_class_without_a_prototype_takes_no_part() -> None:
    """The loss does not depend on the prototype of a class that nobody has, and classes that are known take turns."""
    method = a_method()
    client, batch = a_batch(method, known=(True, True, False, True, False))
    before = method.cross_loss(client, batch)
    client.memory["prototypes"][[2, 4]] = float("inf")
    mixed = a_method(use_apcl=False).cross_loss(client, batch)  # class 2 is known to no one, yet batch has one
    assert torch.isfinite(mixed)
    client.memory["prototypes"][[2, 4]] = 1e6
    torch.testing.assert_close(method.cross_loss(client, batch), before)
