"""The best round of a client: which model is kept, where it is stored, and what does not count."""

from __future__ import annotations

import pytest
import torch
from tests.core.example_client import make_client

from fedchoir.core.client import Client
from fedchoir.core.scores import Detail, Evaluation, TestScore, Validation
from fedchoir.core.validation import enough, keep_best


@pytest.fixture
def client() -> Client:
    return make_client()


def weights(client: Client) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in client.model.parameters()])


def step(client: Client) -> None:
    with torch.no_grad():
        for p in client.model.parameters():
            p.add_(1.0)


def kept(client: Client) -> torch.Tensor:
    state = client.stored_weights("best")
    return torch.cat([state[name].flatten() for name, _ in client.model.named_parameters()])


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("auroc", [60.0, 80.0, 80.0, 70.0], [0, 1, 1, 1]),  # the first of equal rounds
        ("log_loss", [0.6, 0.8, 0.5, 0.7], [0, 0, 2, 2]),
        ("auroc", [None, 50.0, None, 60.0], [None, 1, 1, 3]),
    ],
)
def test_the_model_of_the_best_round_is_kept(
    client: Client, metric: str, scores: list[float | None], best: list[int | None]
) -> None:
    seen = []
    for index, (score, wanted) in enumerate(zip(scores, best, strict=True)):
        step(client)
        seen.append(weights(client))
        assert keep_best(client, score, metric, index) == Validation(score, wanted)
        assert wanted is None or torch.equal(kept(client), seen[wanted])
    assert torch.equal(weights(client), seen[-1])  # the model itself goes on


def test_the_best_model_is_in_the_state(client: Client) -> None:
    keep_best(client, 75.0, "auroc", 4)
    best = kept(client)
    step(client)
    other = make_client()
    other.load(client.state())
    assert torch.equal(kept(other), best)
    assert torch.equal(weights(other), weights(client))
    assert keep_best(other, 75.0, "auroc", 5) == Validation(75.0, 4)


def test_an_evaluation_is_reused_only_if_it_has_what_is_wanted() -> None:
    plain = Evaluation((TestScore(50.0),))
    metrics = Evaluation((TestScore(50.0, {"auroc": 1.0}),))
    intervals = Evaluation((TestScore(50.0, {"auroc": 1.0}, {"auroc": [0.0, 1.0]}),))
    wanted: tuple[Detail, ...] = ("accuracy", "metrics", "intervals")
    table = [[enough(known, detail) for detail in wanted] for known in (plain, metrics, intervals)]
    assert table == [[True, False, False], [True, True, False], [True, True, True]]
