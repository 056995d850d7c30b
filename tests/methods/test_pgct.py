"""PGCT: prototypes and the contrast to the sender's."""

from __future__ import annotations

import torch
from tests.methods.cross_training import a_client, a_method

from fedchoir import methods
from fedchoir.methods.fedct import FedCT
from fedchoir.payload import Payload


def test_prototypes_are_class_means_of_features() -> None:
    method = a_method()
    client = a_client(method, labels=(0, 0, 2, 2, 2))
    payload = method.share_model(client)
    images = torch.cat([x for x, _ in client.private_chunks()])
    with torch.no_grad():
        h = client.model.eval().features(images)
    assert payload["present"].tolist() == [True, False, True, False, False]
    torch.testing.assert_close(payload["prototypes"][0], h[:2].mean(0))
    torch.testing.assert_close(payload["prototypes"][2], h[2:].mean(0))
    assert not payload["prototypes"][[1, 3, 4]].any()


def test_pgct_is_held_to_the_local_view_alone() -> None:
    method = a_method(methods.get("pgct"))
    received = Payload(prototypes=torch.ones(5, 2), present=torch.tensor([1, 0, 1, 0, 0]) > 0)
    guides = method.prototypes(received)
    assert torch.equal(guides["prototypes"], received["prototypes"])
    assert torch.equal(guides["known"], received["present"])


def test_the_temperature_has_two_names() -> None:
    assert FedCT.Params(tau2=0.05) == FedCT.Params(prototype_temperature=0.05)
