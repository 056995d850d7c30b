"""Condensation under differential privacy: one noised release of class means under a fixed bank of random networks.

As in DP-MERF (Harder et al., AISTATS 2021), the private samples are used once. Everything after the release, such as
the synthetic samples, is computed from it and costs no further privacy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedchoir.condensation.matching import Embed, Goal
from fedchoir.condensation.networks import random_network
from fedchoir.condensation.sample_space import Change, for_network, plain, siamese
from fedchoir.data.samples import Samples
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import generator

COUNT_SHARE = 0.1  # of a sample's squared norm: what it adds to the count of its class
ROUNDING = 1e-5  # norms stay below 1 by so much, whatever the rounding of sums
CHUNK = 256

Noise = Callable[[Sequence[int]], Tensor]
"""Gaussian noise of a given shape, with the standard deviation of the release."""


@dataclass(frozen=True)
class Bank:
    """Random networks, each with one change of samples. They follow from the seed."""

    embedders: tuple[Embed, ...]
    changes: tuple[Change, ...]

    @classmethod
    def draw(cls, inputs: InputSpec, width: int, count: int, seed: int, device: torch.device) -> "Bank":
        networks = [random_network(inputs, width, seed, "bank", number).to(device) for number in range(count)]
        embedders = tuple(_unit_length(network, inputs.modality) for network in networks)
        changes = (siamese(inputs.modality, generator(seed, "bank", number)) for number in range(count))
        return cls(embedders, tuple(changes))


def _unit_length(network: nn.Module, modality: str) -> Embed:
    def embed(samples: Tensor) -> Tensor:
        h = network(for_network(samples, modality))
        return h / h.norm(dim=1, keepdim=True).clamp_min(1e-6)

    return embed


@dataclass(frozen=True)
class Release:
    """Noised counts of classes, C, and class means of embeddings for each network, C×d each."""

    counts: Tensor
    means: tuple[Tensor, ...]

    def goal(self, bank: Bank, step: int) -> Goal:
        """The goal of a step of condensation: the networks of the bank in turn."""
        number = step % len(self.means)
        return Goal(bank.embedders[number], bank.changes[number], self.means[number])


def release(private: Samples, bank: Bank, classes: int, noise: Noise) -> Release:
    """Release counts and sums of embeddings of each class with Gaussian noise."""
    check_scaling(private)
    counts, sums = exact_sums(private, bank, classes)
    weight, gain = _scales(bank)
    noisy = (counts + noise(counts.shape).double()) / weight
    divisor = noisy.clamp_min(1).unsqueeze(1) * gain
    device = private.labels.device
    means = tuple(((total + noise(total.shape).double()) / divisor).float().to(device) for total in sums)
    return Release(noisy.float().to(device), means)


def check_scaling(private: Samples) -> None:
    """Raise `UsageError` if one of the samples changes the embeddings of the others."""
    if private.scaled_by_itself:
        raise UsageError(
            f"release_noise is not possible for {private.modality} samples that are scaled by their own statistics, "
            f"which no noise covers; set {'scaling to agreed' if private.modality == 'table' else 'release_noise to 0'}"
        )


@torch.no_grad()
def exact_sums(private: Samples, bank: Bank, classes: int) -> tuple[Tensor, list[Tensor]]:
    """What the noise is added to: C, and C×d for each network.

    A sample x of class c adds to row c the vector (√a, √((1−a)/R) e_1(A_1 x), …, √((1−a)/R) e_R(A_R x)) with
    embeddings of unit length. Its norm is at most 1, and no other row and no other sample's vector depends on x unless
    the samples are scaled by their own statistics, which `check_scaling` refuses. So adding or removing one sample
    changes everything together by at most 1. The noise has σ times that as its standard deviation.
    """
    weight, gain = _scales(bank)
    counts = torch.zeros(classes, dtype=torch.float64)
    sums: list[Tensor] = []
    for start in range(0, len(private), CHUNK):
        index = torch.arange(start, min(start + CHUNK, len(private)), device=private.labels.device)
        samples, labels = plain(private, index), private.labels[index].cpu()
        counts.index_add_(0, labels, torch.full((len(labels),), weight, dtype=torch.float64))
        for number, (embed, change) in enumerate(zip(bank.embedders, bank.changes, strict=True)):
            h = embed(change(samples)).cpu().double() * gain
            if number == len(sums):
                sums.append(torch.zeros(classes, h.shape[1], dtype=torch.float64))
            sums[number].index_add_(0, labels, h)
    return counts, sums


def _scales(bank: Bank) -> tuple[float, float]:
    """The factors of counts and of embeddings."""
    share = (1 - COUNT_SHARE) / len(bank.embedders)
    return COUNT_SHARE**0.5 * (1 - ROUNDING), share**0.5 * (1 - ROUNDING)
