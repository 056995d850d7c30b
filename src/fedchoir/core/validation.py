"""A client's evaluation, and the model of its best round by the headline metric on its own validation share.

The best model is a part of the client's state (``client.memory["best"]``): it is in checkpoints and in a site's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metrics import METRICS
from fedchoir.core.scores import Detail, Evaluation, TestScore, Validation
from fedchoir.data.samples import Samples

if TYPE_CHECKING:
    from fedchoir.core.client import Client

BEST, BEST_ROUND, BEST_SCORE = "best", "best_round", "best_score"  # names in `Client.memory`


class EvaluatedMethod(Protocol):
    spec: FederationSpec

    def evaluate(self, client: Client, tests: Iterable[Samples], detail: Detail = "accuracy") -> list[TestScore]: ...


def evaluate_client(
    method: EvaluatedMethod,
    client: Client,
    tests: Iterable[Samples],
    detail: Detail,
    round_index: int,
    *,
    weights: Mapping[str, Tensor] | None = None,
    validation: Samples | None = None,
) -> Evaluation:
    """Evaluate the client's own model, or that of some weights, on the tests and on its validation share. Weights that
    are not given are the client's own.

    The model is kept if its validation score is the client's best so far.
    """
    own = None if weights is None else client.snapshot()
    if own is not None:
        client.model.load_state_dict({**own, **(weights or {})})
    if validation is None:
        found = Evaluation(tuple(method.evaluate(client, tests, detail)))
    else:
        *scores, last = method.evaluate(client, [*tests, validation], "metrics" if detail == "accuracy" else detail)
        metric = method.spec.metric
        found = Evaluation(tuple(scores), keep_best(client, last.metrics[metric], metric, round_index))
    if own is not None:
        client.model.load_state_dict(own)
    return found


def keep_best(client: Client, score: float | None, metric: str, round_index: int) -> Validation:
    """Keep the client's model if its score is better than that of all rounds before. An undefined score never is."""
    memory = client.memory
    before = float(client.stored_tensor(BEST_SCORE)) if BEST in memory else None
    if score is not None and (before is None or METRICS[metric].better(score, before)):
        memory[BEST] = client.model.state_dict()
        memory[BEST_ROUND] = torch.tensor(round_index)
        memory[BEST_SCORE] = torch.tensor(score, dtype=torch.float64)
    return Validation(score, int(client.stored_tensor(BEST_ROUND)) if BEST in memory else None)


def enough(known: Evaluation, detail: Detail) -> bool:
    """Whether an earlier evaluation of the same model has everything that is wanted."""
    return detail == "accuracy" or all(s.metrics and (s.intervals or detail == "metrics") for s in known.tests)
