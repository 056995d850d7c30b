"""Condensation: what it matches, where it starts, and what it may not look at."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedchoir.condensation.matching import Goal, Recipe, condense, draw_by_class, private_goal, start_noise
from fedchoir.condensation.networks import random_network
from fedchoir.condensation.sample_space import siamese
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.utils.input_spec import InputSpec

OWNED = torch.tensor([True, True, False])
RECIPE = Recipe(per_class=4, formation=1, steps=120, lr=0.1, batch=64)


def vectors() -> TensorSet:
    """Class 0 around (3, 0, …), class 1 around (0, −3, …); class 2 has no samples."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    centres = torch.tensor([[3.0, 0, 0, 0, 0], [0, -3.0, 0, 0, 0]])
    return TensorSet(centres[labels] + 0.3 * torch.randn(80, 5, generator=draw), labels)


def goals(private: TensorSet, inputs: InputSpec) -> tuple[list[int], object]:
    steps: list[int] = []

    def goal(step: int) -> Goal:
        steps.append(step)
        embed = random_network(inputs, 8, 0, step)
        draw = torch.Generator().manual_seed(step)
        change = siamese(inputs.modality, draw)
        return private_goal(private, OWNED, embed, change, RECIPE.batch, draw)

    return steps, goal


def test_synthetic_samples_have_the_class_means_of_private_ones() -> None:
    private = vectors()
    start = start_noise(3, (5,), RECIPE, "tensor", seed=0)
    steps, goal = goals(private, private.input_spec)
    made, _ = condense(start, goal, OWNED, torch.full((len(start),), RECIPE.per_class), RECIPE, "tensor")  # type: ignore[arg-type]
    assert steps == list(range(RECIPE.steps))
    for c in (0, 1):
        target = private.inputs[private.labels == c].mean(dim=0)
        assert (made[c].mean(dim=0) - target).norm() < 0.25 * (start[c].mean(dim=0) - target).norm()
    assert torch.equal(made[2], start[2])  # nothing is known of a class that is not owned


def test_a_start_depends_on_the_seed_alone() -> None:
    one, same, other = (start_noise(2, (3, 8, 8), RECIPE, "image", seed) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.min() >= 0
    assert one.max() <= 1


def test_at_most_so_many_samples_of_every_owned_class_are_drawn() -> None:
    labels = torch.tensor([0] * 10 + [1] * 3 + [2] * 10)
    index = draw_by_class(labels, OWNED, 5, torch.Generator().manual_seed(0))
    assert labels[index].bincount(minlength=3).tolist() == [5, 3, 0]
    assert len(set(index.tolist())) == len(index)


@pytest.mark.parametrize(
    "inputs",
    [InputSpec.image(16), InputSpec("image", (3, 12, 20)), InputSpec("series", (2, 24)), InputSpec("table", (7,))],
)
def test_random_networks_are_derived_and_tell_samples_apart(inputs: InputSpec) -> None:
    samples = torch.randn(4, *inputs.shape, generator=torch.Generator().manual_seed(0))
    one, same, other = (random_network(inputs, 8, 0, label)(samples) for label in ("a", "a", "b"))
    assert one.ndim == 2
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.pdist(one).min() > 0.01


def test_an_embedding_does_not_depend_on_the_other_samples_of_a_batch() -> None:
    samples = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    network = random_network(InputSpec.image(16), 8, 0)
    alone: Tensor = network(samples[:1])
    torch.testing.assert_close(network(samples)[:1], alone, rtol=1e-4, atol=1e-5)


def test_condensed_series_have_the_level_and_the_amplitude_of_their_class() -> None:
    """Both tell classes apart, and networks that normalise every series would hide them."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    level, amplitude = torch.tensor([-1.0, 1.0, 0.0])[labels], torch.tensor([0.2, 0.2, 1.5])[labels]
    series = level.view(-1, 1, 1) + amplitude.view(-1, 1, 1) * torch.randn(120, 2, 32, generator=draw)
    private, inputs = TensorSet(series, labels), InputSpec("series", (2, 32))
    recipe, owned = Recipe(per_class=6, formation=1, steps=300, lr=0.1, batch=32), torch.ones(3, dtype=torch.bool)

    def goal(step: int) -> Goal:
        change = siamese("series", torch.Generator().manual_seed(step))
        return private_goal(private, owned, random_network(inputs, 16, 0, step), change, recipe.batch, draw)

    start = start_noise(3, inputs.shape, recipe, "series", seed=0)
    made, _ = condense(start, goal, owned, torch.full((3,), recipe.per_class), recipe, "series")
    statistics = torch.stack([series.mean(dim=(1, 2)), series.std(dim=(1, 2))], dim=1)
    centres = torch.stack([made.mean(dim=(1, 2, 3)), made.flatten(2).std(dim=2).mean(dim=1)], dim=1)
    assert (torch.cdist(statistics, centres).argmin(dim=1) == labels).float().mean() > 0.95
