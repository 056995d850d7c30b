"""Distribution matching. Zhao and Bilen, Dataset Condensation with Distribution Matching, WACV 2023."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedchoir.condensation.sample_space import Change, decode, limits, middle, plain
from fedchoir.data.samples import Samples
from fedchoir.losses import class_means, mean_matching
from fedchoir.utils.rng import generator

START_SPREAD = 0.1  # of the noise that condensation starts from: of the range of pixels, or in standard units
SERIES_START_SPREAD = 1.0  # that of real series

Embed = Callable[[Tensor], Tensor]
"""Samples in the space of condensation → embeddings B×d."""


@dataclass(frozen=True)
class Recipe:
    """How a client condenses.

    Attributes:
        per_class: stored samples for each class.
        formation: side of the grid of smaller images in a stored one.
        steps: steps of Adam, each under another embedder.
        lr: of Adam, of the range of pixels or in standard units.
        batch: most private samples of a class in a step.
    """

    per_class: int
    formation: int
    steps: int
    lr: float
    batch: int


@dataclass(frozen=True)
class Goal:
    """One step's embedder, its random change of samples, and the private samples' class means under both, C×d."""

    embed: Embed
    change: Change
    means: Tensor


Goals = Callable[[int], Goal]
"""The goal of a step."""


def start_noise(classes: int, shape: tuple[int, ...], recipe: Recipe, modality: str, seed: int) -> Tensor:
    """Where condensation starts, C×N×shape: noise that no private sample enters."""
    noise = torch.randn(classes, recipe.per_class, *shape, generator=generator(seed, "condensation start"))
    spread = SERIES_START_SPREAD if modality == "series" else START_SPREAD
    return (middle(modality) + spread * noise).clamp(*limits(modality))


def condense(
    start: Tensor, goals: Goals, owned: Tensor, distinct: Tensor, recipe: Recipe, modality: str
) -> tuple[Tensor, Tensor]:
    """Samples C×N×shape whose class means match those of the private ones under every embedder, and the mean loss.

    Only the first ``distinct`` (C, at least 1) samples of a class are its own; they are repeated up to N.

    With embedder e_t and random change A_t of step t, the same for private samples x and synthetic ones s:

        min_s Σ_c ‖ mean_{x of class c} e_t(A_t x) − mean_{s of class c} e_t(A_t s) ‖²
    """
    classes, number, distinct = len(start), torch.arange(recipe.per_class), distinct.cpu().unsqueeze(1)
    made = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([made], lr=recipe.lr)
    own = (number < distinct).nonzero(as_tuple=True)
    labels = own[0].to(start.device).repeat_interleave(recipe.formation**2)
    total = torch.zeros((), device=start.device)
    with torch.enable_grad():
        for step in range(recipe.steps if bool(owned.any()) else 0):
            goal = goals(step)
            samples = decode(made[own], recipe.formation)
            means = class_means(goal.embed(goal.change(samples)), labels, classes)
            loss = mean_matching(means, goal.means, owned)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                made.clamp_(*limits(modality))
            total += loss.detach()
    repeated = made.detach()[torch.arange(classes).unsqueeze(1), number % distinct]
    return repeated, total / max(recipe.steps, 1)


def private_goal(
    private: Samples, owned: Tensor, embed: Embed, change: Change, batch: int, draw: torch.Generator
) -> Goal:
    """The class means of at most ``batch`` randomly drawn private samples of each class."""
    index = draw_by_class(private.labels.cpu(), owned.cpu(), batch, draw).to(private.labels.device)
    with torch.no_grad():
        means = class_means(embed(change(plain(private, index))), private.labels[index], len(owned))
    return Goal(embed, change, means)


def draw_by_class(labels: Tensor, owned: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Positions of at most ``count`` random samples of each owned class."""
    order = torch.randperm(len(labels), generator=draw)
    shuffled = labels[order]
    return torch.cat([order[shuffled == c][:count] for c in owned.nonzero().flatten().tolist()])
