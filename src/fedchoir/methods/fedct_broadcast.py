"""FedCT's phase II, knowledge broadcasting: which client trains which model."""

from collections import Counter
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.core.aggregation import Aggregator, CountedMean, blend
from fedchoir.core.assignment import Rule, assign
from fedchoir.methods.api import Client, Field
from fedchoir.methods.fedexg import Models
from fedchoir.methods.pgct import PGCT, PGCTParams
from fedchoir.models import Model
from fedchoir.payload import Payload


class KnowledgeBroadcastParams(PGCTParams):
    broadcast: Literal["consistency", "inconsistency", "random"] = Field(
        "consistency",
        description="targets of models: smallest (eq. 4) or largest (eq. 5) loss on their prototypes, or random",
    )
    assignment: Rule = Field(
        "assignment",
        description="argmin: each model goes to its best client (eq. 4 as printed), so that a client trains several or "
        "none; greedy, assignment: each client trains one, the best pair first or at the best total",
    )

    @model_validator(mode="after")
    def _one_exchange_with_argmin(self) -> Self:
        if self.several and self.exchanges > 1:
            raise ValueError(
                f"exchanges = {self.exchanges} is not possible with assignment = 'argmin', which leaves some clients "
                "without a model: assignment should be assignment or greedy"
            )
        if self.several and self.robust != "mean":
            raise ValueError(
                f"robust = {self.robust!r} is not possible with assignment = 'argmin', where clients have weights: "
                "assignment should be assignment or greedy"
            )
        return self

    @property
    def several(self) -> bool:
        """Whether a client may get several models."""
        return self.assignment == "argmin" and self.broadcast != "random"


class KnowledgeBroadcast(PGCT):
    """Models are sent to clients whose prototypes they classify well, with prototypes of the local and the global view.

    With ``argmin`` a client trains its models one after the other and keeps their mean, which counts as often as there
    are models. A client without a model does not train and does not count.
    """

    Params = KnowledgeBroadcastParams
    params: KnowledgeBroadcastParams

    def broadcast(self, models: Models, round_index: int, number: int) -> list[Models]:
        """Another client's model and prototypes for every client; the global prototypes for all (eq. 2)."""
        u, have = stacked(models)
        count = have.sum(dim=0)
        u_g = (u * have.unsqueeze(2)).sum(dim=0) / count.clamp_min(1).unsqueeze(1)
        views = {"global_prototypes": u_g, "known": count > 0}
        steps = super().broadcast(models, round_index, number)
        return [{k: Payload(p, scalars=p.scalars, **views) for k, p in step.items()} for step in steps]

    def costs(self, models: Models, round_index: int, number: int) -> Tensor:
        if self.params.broadcast == "random":
            return super().costs(models, round_index, number)
        sign = 1 if self.params.broadcast == "consistency" else -1
        return sign * self.consistency(models)

    @torch.no_grad()
    def consistency(self, models: Models) -> Tensor:
        """The matrix of eq. 3 (N×N): v_ij is the mean loss of the i-th client's classifier on the j-th's prototypes."""
        u, have = stacked(models)
        n, classes = have.shape
        labels = torch.arange(classes, device=u.device).repeat(n)
        classifier = Classifier(self.architecture).to(u.device)
        rows = []
        for payload in models.values():
            weights = {f"model.{name}": t for name, t in payload.under("weights").items()}
            z = functional_call(classifier, weights, (u.flatten(0, 1),))
            losses = cross_entropy(z, labels, reduction="none").view(n, classes).masked_fill(~have, 0.0)
            rows.append(losses.sum(dim=1) / have.sum(dim=1).clamp_min(1))
        return torch.stack(rows)

    def targets(self, costs: Tensor) -> list[int]:
        """eq. 4 or 5."""
        return super().targets(costs) if self.params.broadcast == "random" else assign(costs, self.params.assignment)

    # -- several models at one client (argmin) ---------------------------------------------------------------------

    def in_steps(self, moves: list[tuple[int, int]], models: Models, number: int) -> list[Models]:
        if not self.params.several:
            return super().in_steps(moves, models, number)
        steps: list[Models] = [{} for _ in self.spec.clients[1:]]  # as many in every round; most are empty
        for i, j in moves:
            order = next(k for k, step in enumerate(steps) if j not in step)
            steps[order][j] = Payload(models[i], scalars={"exchange": float(order)})
        return steps

    def cross_train(self, client: Client, received: Payload | None) -> None:
        before = int(received.scalars["exchange"]) if received is not None and self.params.several else 0
        mean = client.snapshot() if before else {}
        super().cross_train(client, received)
        if before:
            blend(client.model, mean, before / (before + 1))

    def weighting(self) -> Aggregator:
        """Every model has the weight of the client that trained it (eq. 11)."""
        if not self.params.several:
            return super().weighting()
        everyone = dict.fromkeys(range(len(self.spec.clients)), 1)
        trained = Counter(j for _, j in self.moves[-1]) if self.moves else everyone
        uniform = self.params.weighting == "uniform"
        counts = [trained.get(k, 0) for k in everyone]
        return CountedMean([c * (1 if uniform else i.train) for c, i in zip(counts, self.spec.clients, strict=True)])


class Classifier(nn.Module):
    """A model's head alone: features → logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, h: Tensor) -> Tensor:
        return self.model.classify(h)


def stacked(models: Models) -> tuple[Tensor, ...]:
    """The prototypes of N clients (N×C×d) and which of them exist (N×C)."""
    return tuple(torch.stack([p[name] for p in models.values()]) for name in ("prototypes", "present"))
