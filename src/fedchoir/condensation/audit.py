"""What a condensed set reveals about single private samples: attacks that a site runs before it sends the set.

They are lower bounds: a better attack may find more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedchoir.condensation.networks import random_network
from fedchoir.condensation.sample_space import for_network
from fedchoir.condensation.token_runs import bags, fewest_texts, longest_common_run
from fedchoir.losses import class_means
from fedchoir.privacy.membership import Estimate, loss_attack
from fedchoir.privacy.reconstruction import best_psnr
from fedchoir.utils.input_spec import InputSpec

NETWORKS = 8  # random networks of the second attack
WIDTH = 16
CHUNK = 256


@dataclass(frozen=True)
class Labelled:
    """Samples in the space of condensation (token ids of texts), and their classes."""

    samples: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Audit:
    """The results of all attacks. Texts are compared by the tokens and pairs of tokens that they have.

    Attributes:
        nearest: AUC of telling private from unseen samples by the distance to the nearest synthetic one of their class.
        embedded: the same by the distance to the synthetic class mean under random networks: what was matched.
        distance: median distance of a synthetic sample to the nearest private one of its class, relative to the median
            distance between neighbouring private samples. Far below 1: synthetic samples are copies.
        best: the best match of a synthetic with a private sample, PSNR in dB; of texts, the longest run of tokens that
            they have in common.
        chance: the same of as many unseen samples.
        rarest: the number of private texts of the class that have the rarest of the sent tokens; None: no texts.
    """

    nearest: Estimate
    embedded: Estimate
    distance: float
    best: float
    chance: float
    rarest: int | None = None


def audit(made: Labelled, private: Labelled, unseen: Labelled, inputs: InputSpec, classes: int, seed: int) -> Audit:
    """Attack a condensed set. Classes that it does not have are left out."""
    private, unseen = (_of_classes(samples, made.labels) for samples in (private, unseen))
    if inputs.modality == "text":
        return _audit_texts(made, private, unseen, classes)
    nearest = loss_attack(*(_nearest(samples, made) for samples in (private, unseen)))
    embedded = loss_attack(*(_embedded(samples, made, inputs, classes, seed) for samples in (private, unseen)))
    unrelated = unseen.samples[: len(made.samples)]
    best, chance = (best_psnr(samples, private.samples) for samples in (made.samples, unrelated))
    return Audit(nearest, embedded, _apart(made, private), best, chance)


def _audit_texts(made: Labelled, private: Labelled, unseen: Labelled, classes: int) -> Audit:
    unrelated = unseen.samples[: len(made.samples)]
    best, chance = (longest_common_run(texts, private.samples) for texts in (made.samples, unrelated))
    of_classes = [(made.samples[made.labels == c], private.samples[private.labels == c]) for c in made.labels.unique()]
    rarest = min(fewest_texts(*each) for each in of_classes)
    made, private, unseen = (Labelled(bags(each.samples), each.labels) for each in (made, private, unseen))
    nearest = loss_attack(*(_nearest(texts, made) for texts in (private, unseen)))
    means = class_means(made.samples, made.labels, classes)
    embedded = loss_attack(*((each.samples - means[each.labels]).norm(dim=1) for each in (private, unseen)))
    return Audit(nearest, embedded, _apart(made, private), best, chance, rarest)


def _apart(made: Labelled, private: Labelled) -> float:
    between = _nearest(private, private, itself=True).median().clamp_min(1e-12)
    return float(_nearest(made, private).median() / between)


def _of_classes(samples: Labelled, labels: Tensor) -> Labelled:
    kept = torch.isin(samples.labels, labels)
    return Labelled(samples.samples[kept], samples.labels[kept])


def _nearest(samples: Labelled, others: Labelled, itself: bool = False) -> Tensor:
    """The distance of every sample to the nearest other one of its class; infinite ones are left out."""
    found = []
    for start in range(0, len(samples.samples), CHUNK):
        chunk = slice(start, start + CHUNK)
        distances = torch.cdist(samples.samples[chunk].flatten(1), others.samples.flatten(1))
        distances[samples.labels[chunk, None] != others.labels] = torch.inf
        if itself:
            rows = torch.arange(len(distances))
            distances[rows, rows + start] = torch.inf
        found.append(distances.amin(dim=1))
    nearest = torch.cat(found)
    return nearest[nearest.isfinite()]


def _embedded(samples: Labelled, made: Labelled, inputs: InputSpec, classes: int, seed: int) -> Tensor:
    """The distance of every sample's embedding to the synthetic mean of its class, averaged over random networks."""
    total = torch.zeros(len(samples.samples))
    for number in range(NETWORKS):
        network = random_network(inputs, WIDTH, seed, "audit", number)
        embed = _embedder(network, inputs.modality)
        means = class_means(embed(made.samples), made.labels, classes)
        total += (embed(samples.samples) - means[samples.labels]).norm(dim=1)
    return total / NETWORKS


def _embedder(network: torch.nn.Module, modality: str) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def embed(samples: Tensor) -> Tensor:
        return torch.cat([network(for_network(chunk, modality)) for chunk in samples.split(CHUNK)])

    return embed
