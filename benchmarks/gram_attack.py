"""An attack on FedFoA's correlation matrix R, the only payload of a client.

    python benchmarks/gram_attack.py --scenario cifar10 --data-root DATA

R of Z = QR is the Cholesky factor of ZᵀZ: R reveals the Gram matrix of the features and nothing else about the batch.
The experiment trains one client with BYOL, takes its R, and tries to infer features, membership and classes, with
increasing prior knowledge of the attacker. ``docs/fedfoa-privacy.md`` has the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedchoir import methods
from fedchoir.core.client import Client
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import normalise
from fedchoir.data.options import DataOptions
from fedchoir.data.scenario import ClientData, info, load_scenario
from fedchoir.engines.local.client_factory import new_client
from fedchoir.experiments.profiles import profile_options
from fedchoir.losses import feature_correlation
from fedchoir.methods.self_supervised import SelfSupervised
from fedchoir.utils.rng import generator


def gram(r: Tensor) -> Tensor:
    """ZᵀZ, n×n: inner products of any two features, their norms on the diagonal.

    >>> z = torch.tensor([[3.0, 1.0], [0.0, 2.0], [4.0, 2.0]])
    >>> gram(feature_correlation(z)).round().tolist(), (z.T @ z).tolist()
    ([[25.0, 11.0], [11.0, 9.0]], [[25.0, 11.0], [11.0, 9.0]])
    """
    return r.mT @ r


def mean_direction(r: Tensor) -> Tensor:
    """The unit vector along which the features are largest, n: their mean's direction, but for its sign, where the
    mean stands out."""
    return torch.linalg.svd(r).Vh[0]


def last_row(r: Tensor, known: Tensor) -> Tensor:
    """The one sample of a batch that is not ``known`` ((m−1)×n), but for its sign: what is left of ZᵀZ is z zᵀ.

    >>> z = torch.tensor([[3.0, 1.0], [0.0, 2.0], [4.0, 2.0]], dtype=torch.float64)
    >>> last_row(feature_correlation(z), z[:2]).abs().round(decimals=4).tolist()
    [4.0, 2.0]
    """
    values, vectors = torch.linalg.eigh(gram(r) - known.mT @ known)
    return values[-1].clamp_min(0).sqrt() * vectors[:, -1]


def leverage(r: Tensor, z: Tensor) -> Tensor:
    """zᵀ(RᵀR)⁻¹z of each row: at most 1 for a sample of the batch, and n/m on average; larger for others."""
    scaled = torch.linalg.solve_triangular(r.mT, z.mT, upper=False)
    return scaled.square().sum(0)


def membership(r: Tensor, members: Tensor, others: Tensor) -> float:
    """How well leverage tells members from others: area under the ROC curve, 0.5 is guessing."""
    scores = torch.cat([leverage(r, members), leverage(r, others)])
    truth = [1] * len(members) + [0] * len(others)
    return float(roc_auc_score(truth, -scores.numpy()))


def class_mix(r: Tensor, rows: int, moments: Tensor) -> Tensor:
    """The shares of the classes, C, that best explain ZᵀZ/m as a mixture of each class's E[z zᵀ] (C×n×n)."""
    upper = np.triu_indices(r.shape[0])
    columns = np.stack([m.numpy()[upper] for m in moments], axis=1)
    shares, _ = nnls(columns, (gram(r) / rows).numpy()[upper])
    return torch.from_numpy(shares / max(shares.sum(), 1e-12))


def sent(z: Tensor) -> Tensor:
    """R as it travels: rounded to float32."""
    return feature_correlation(z).float().to(z.dtype)


# -- the experiment ------------------------------------------------------------------------------------------------


def attack(o: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(question, number) pairs."""
    method, client, outside = participant(o)
    method.local_update(client)
    shared = method.correlations(client).mean().double()
    inside_z, outside_z = (features(method, client, images) for images in (client.private, outside))
    yield from gram_leak(inside_z[: o.batch], o)
    yield from prior_knowledge(inside_z, outside_z, o)
    yield "R̄ of a real round (views, moving weights): membership AUC", f"{membership(shared, inside_z, outside_z):.3f}"
    yield from class_leak(inside_z, outside_z, client.private.labels, outside.labels, o)


def participant(o: argparse.Namespace) -> tuple[SelfSupervised, Client, ImageSet]:
    """A client with the training images of a scenario, and the test images, which it has not seen."""
    clients = 1 if info(o.scenario).kind == "label-skew" else None
    scenario = load_scenario(o.scenario, root=o.data_root, seed=o.seed, options=DataOptions(clients=clients))
    first, *others = (client.train for client in scenario.clients)
    train = first.joined(*others)
    test, *tests = scenario.tests.values()
    outside = test.joined(*tests)
    order = torch.randperm(len(train), generator=generator(o.seed, "attack"))[: o.images]
    train = train.subset(order)
    cls = methods.get("fedfoa")
    settings: dict[str, Any] = {
        **profile_options(SelfSupervised, "fixed"),
        "local_batch": o.batch,
        "dim": o.dim,
        "local_epochs": o.epochs,
        "knn": 0,
    }
    settings["foa_scale"] = "raw"  # as in the paper; at unit length the features' norms are not in R
    info_a = ClientInfo("a", o.model, len(train), len(outside), "a")
    method = cls(cls.Params(**settings), FederationSpec(scenario.classes, (info_a,), rounds=1, seed=o.seed))
    assert isinstance(method, SelfSupervised)
    data = ClientData("a", train, "a")
    client = new_client(method, 0, data, None, device=torch.device("cpu"), precision="fp32")
    client.phase = "practise"  # frozen stream name
    return method, client, outside


@torch.no_grad()
def features(method: SelfSupervised, client: Client, images: ImageSet) -> Tensor:
    """Calibrated features of images without augmentation, N×n in float64."""
    client.model.eval()
    parts = [normalise(chunk, images.mean, images.std) for chunk in images.inputs.split(500)]
    return torch.cat([method.calibrated(client, part) for part in parts]).double()


def gram_leak(z: Tensor, o: argparse.Namespace) -> Iterator[tuple[str, str]]:
    r = sent(z)
    true = z.mT @ z
    yield "Gram matrix: ‖RᵀR − ZᵀZ‖ / ‖ZᵀZ‖", f"{relative(gram(r), true):.1e}"
    spectra = torch.linalg.svdvals(r), torch.linalg.svdvals(z)
    yield "singular values of Z from R: relative error", f"{relative(spectra[0], spectra[1]):.1e}"
    average = z.mean(0)
    cosine = torch.dot(mean_direction(r), average).abs() / average.norm()
    yield "direction of the mean feature: |cos|", f"{float(cosine):.3f}"
    draw = generator(o.seed, "rotation")
    rotation = torch.linalg.qr(torch.randn(len(z), len(z), generator=draw, dtype=z.dtype)).Q
    rival = rotation @ z
    yield "another batch with the same R: ‖R′ − R‖ / ‖R‖", f"{relative(sent(rival), r):.1e}"
    yield "… and how far its features are: ‖Z′ − Z‖ / ‖Z‖", f"{relative(rival, z):.2f}"


def prior_knowledge(inside: Tensor, outside: Tensor, o: argparse.Namespace) -> Iterator[tuple[str, str]]:
    z = inside[: o.batch]
    r = sent(z)
    found = last_row(r, z[:-1])
    error = min(relative(sign * found, z[-1]) for sign in (1, -1))
    yield "all features of the batch but one known: error of the last, up to sign", f"{error:.1e}"
    two = last_row(r, z[:-2])
    error = min(relative(sign * two, row) for sign in (1, -1) for row in z[-2:])
    yield "all but two known: error of the nearer one", f"{error:.2f}"
    for batches in (1, 2, 5, 10, 20):
        if batches * o.batch > len(inside):
            break
        members = inside[: batches * o.batch]
        mean = torch.stack([sent(part) for part in members.split(o.batch)]).mean(0)
        auc = membership(mean, members, outside)
        yield f"encoder known, R averaged over {batches} batch(es): membership AUC", f"{auc:.3f}"


def class_leak(
    inside: Tensor, outside: Tensor, labels: Tensor, outside_labels: Tensor, o: argparse.Namespace
) -> Iterator[tuple[str, str]]:
    """Batches of skewed classes; the attacker has the encoder and labelled images of its own (the test images)."""
    classes = int(labels.max()) + 1
    groups = [outside[outside_labels == c] for c in range(classes)]
    moments = torch.stack([group.mT @ group / len(group) for group in groups])
    draw = generator(o.seed, "mixes")
    errors: dict[int, list[Tensor]] = {1: [], 5: []}
    guesses = []
    for _ in range(20):
        weights = torch.rand(classes, generator=draw).pow(4)[labels]
        batches = [torch.multinomial(weights, o.batch, replacement=True, generator=draw) for _ in range(5)]
        rs = torch.stack([sent(inside[index]) for index in batches])
        for count, found in errors.items():
            truth = torch.bincount(labels[torch.cat(batches[:count])], minlength=classes) / (count * o.batch)
            found.append(misplaced(class_mix(rs[:count].mean(0), o.batch, moments), truth))
        guesses.append(misplaced(torch.full((classes,), 1 / classes), truth))
    for count, found in errors.items():
        share = float(torch.stack(found).mean())
        yield f"encoder known, R averaged over {count} batch(es): share put into a wrong class", f"{share:.2f}"
    yield "… where equal shares for all classes would give", f"{float(torch.stack(guesses).mean()):.2f}"


def misplaced(found: Tensor, true: Tensor) -> Tensor:
    """The share of images that must change class to turn one distribution into the other."""
    return (found - true).abs().sum() / 2


def relative(found: Tensor, true: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - true) / torch.linalg.vector_norm(true))


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attack FedFoA's correlation matrix.")
    parser.add_argument("--scenario", default="digits-lite")
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--images", type=int, default=10_000, help="private images of the client, at most")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    o = options()
    print(f"{o.scenario}, {o.model}, batch m = {o.batch}, n = {o.dim}, {o.epochs} epochs of BYOL, seed {o.seed}")
    for question, number in attack(o):
        print(f"{question:75} {number}")


if __name__ == "__main__":
    main()
