"""Clients in their initial state follow from the seed and their index."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.engines.many_clients import ManyClients
from tests.helpers import equal

from fedchoir import methods
from fedchoir.core.private_training import PrivateTrainer
from fedchoir.engines.local.client_factory import ClientModules, new_client, new_modules
from fedchoir.methods.fedavg import FedAvg

CPU = torch.device("cpu")


def test_one_architecture_has_one_initial_model() -> None:
    method = ManyClients(FedAvg, 3).method
    assert equal(new_modules(method, 0).model.state_dict(), new_modules(method, 2).model.state_dict())


def test_several_architectures_have_an_initial_model_per_client() -> None:
    method = ManyClients(methods.get("solo"), 3).method
    first, *others = method.spec.clients
    method.spec = replace(method.spec, clients=(replace(first, model="mlp"), *others))
    one, two, again = (new_modules(method, k).model.state_dict() for k in (1, 2, 1))
    assert not equal(one, two)
    assert equal(one, again)


def test_the_last_clients_are_the_attackers() -> None:
    federation = ManyClients(FedAvg, 4, attack="label_flip", attackers=1)
    data = [client.private.labels for client in federation.clients]
    assert [client.hostile for client in federation.clients] == [False, False, False, True]
    honest = ManyClients(FedAvg, 4).clients
    assert torch.equal(data[0], honest[0].private.labels)
    assert not torch.equal(data[3], honest[3].private.labels)


def test_differential_privacy_brings_its_own_trainer() -> None:
    federation = ManyClients(FedAvg, 2, dp_noise=1.0)
    assert all(isinstance(client.trainer, PrivateTrainer) for client in federation.clients)


def test_modules_take_over_weights() -> None:
    federation = ManyClients(FedAvg, 2)
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    models = [new_modules(federation.method, 0).model for _ in range(2)]
    with torch.no_grad():
        next(models[1].parameters()).add_(1)
    mine, other = (ClientModules(m, {"head": layer}) for m, layer in zip(models, layers, strict=True))
    mine.copy_from(other, auxiliary_only=True)
    assert equal(layers[0].state_dict(), layers[1].state_dict())
    assert not equal(models[0].state_dict(), models[1].state_dict())
    mine.copy_from(other)
    assert equal(models[0].state_dict(), models[1].state_dict())


def test_a_client_has_the_modules_it_is_given() -> None:
    federation = ManyClients(FedAvg, 2)
    modules = new_modules(federation.method, 0)
    data = federation.engine.clients._data[0]
    client = new_client(federation.method, 0, data, None, device=CPU, precision="fp32", modules=modules)
    assert client.model is modules.model
