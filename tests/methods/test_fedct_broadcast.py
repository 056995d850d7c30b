"""FedCT's phase II with the rules of assignment: who trains which model, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.helpers import events
from tests.methods.cross_training import a_client, a_method

from fedchoir import Experiment, run
from fedchoir.methods.fedct import FedCT
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

HUB = torch.tensor([[0.0, 1.0, 5.0, 6.0], [2.0, 0.0, 9.0, 9.0], [9.0, 1.0, 0.0, 9.0], [9.0, 1.0, 9.0, 0.0]])
"""All models are most consistent with client 1, whose own is with client 0."""


def offered(count: int) -> dict[int, Payload]:
    return {k: Payload(prototypes=torch.full((5, 2), float(k)), present=torch.ones(5).bool()) for k in range(count)}


@pytest.mark.parametrize(
    ("rule", "moves"),
    [
        ("argmin", [(0, 1), (1, 0), (2, 1), (3, 1)]),
        ("greedy", [(0, 1), (1, 0), (2, 3), (3, 2)]),
        ("assignment", [(0, 2), (1, 0), (2, 3), (3, 1)]),
    ],
)
def test_the_rules_of_equation_4(rule: str, moves: list[tuple[int, int]]) -> None:
    method = a_method(clients=4, assignment=rule)
    method.consistency = lambda models: HUB
    steps = method.broadcast(offered(4), 0, 0)
    assert method.moves == [moves]
    assert len(steps) == (3 if rule == "argmin" else 1)  # the sequence of actions does not depend on values
    received = sorted((int(p["prototypes"][0, 0]), j) for step in steps for j, p in step.items())
    assert received == moves


def test_random_broadcast_is_a_permutation_with_every_rule() -> None:
    for rule in ("argmin", "greedy", "assignment"):
        method = a_method(clients=4, assignment=rule, broadcast="random")
        (step,) = method.broadcast(offered(4), 0, 0)
        assert sorted(step) == [0, 1, 2, 3]


def test_a_client_with_several_models_keeps_their_mean_and_counts_as_often() -> None:
    method = a_method(clients=4, assignment="argmin", cross_epochs=0)
    method.consistency = lambda models: HUB
    payloads = {}
    for k in range(4):
        client = a_client(method, k)
        payloads[k] = method.share_model(client)
    steps = method.broadcast(payloads, 0, 0)
    client = a_client(method, 1)
    for step in steps:
        method.cross_train(client, step.get(1))
    name = "head.weight"
    mean = torch.stack([payloads[k][f"weights/{name}"] for k in (0, 2, 3)]).mean(dim=0)
    torch.testing.assert_close(client.model.state_dict()[name], mean)
    assert method.weighting().weights == [10, 3 * 11, 0, 0]  # clients have 10 + k samples
    method.moves = []
    assert method.weighting().weights == [10, 11, 12, 13]  # no exchange: each its own


def test_a_run_with_argmin_trains_each_model_once(skew: Callable[..., Experiment]) -> None:
    experiment = skew("fedct", rounds=2, assignment="argmin")
    run(experiment)
    for event in events(experiment):
        (moves,) = event["measures"]["exchanges"]
        assert [i for i, _ in moves] == [0, 1, 2, 3]
        trained = Counter(f"client-{j}" for _, j in moves)
        crossed = {name for name, losses in event["losses"].items() if "cross_loss" in losses}
        assert crossed == set(trained)


def test_several_exchanges_need_a_model_for_every_client() -> None:
    with pytest.raises(UsageError, match=r"exchanges = 2 is not possible with assignment = 'argmin'"):
        FedCT.Params(assignment="argmin", exchanges=2)
    FedCT.Params(assignment="argmin", exchanges=2, broadcast="random")
    with pytest.raises(UsageError, match=r"robust = 'median' is not possible with assignment = 'argmin'"):
        FedCT.Params(assignment="argmin", robust="median")
