"""The data behind every figure: a function of a run each, plain JSON values out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn.functional import normalize

from fedchoir.losses import cross_correlation
from fedchoir.methods.fedexg import FedExg
from fedchoir.reporting.analysis.cam import grad_cam
from fedchoir.reporting.analysis.cka import compare_models
from fedchoir.reporting.analysis.domain_distance import proxy_a_distance, rank_correlation
from fedchoir.reporting.analysis.load import FinishedRun, answers, ready
from fedchoir.reporting.analysis.retention import exchange_cka, play_exchange, retention

PUBLIC_IMAGES = 1000
TEST_IMAGES = 400
MAP_IMAGES = 64
CKA_IMAGES, CKA_BATCH = 1000, 200
SHOWN = 24
"""Clients that a figure of one panel each shows at most."""

Data = dict[str, Any]


class NotHere(Exception):
    """A figure that this run cannot have; the message says why."""


def need(there: object, why: str) -> None:
    if not there:
        raise NotHere(why)


def accuracy(run: FinishedRun) -> Data:
    """Intra and inter accuracy against rounds, over clients and of each client."""
    scored = [event for event in run.events if event["accuracy"] is not None]
    need(scored, "no round was evaluated")
    return {
        "rounds": [event["round"] + 1 for event in scored],
        "intra": [event["intra_avg"] for event in scored],
        "inter": [event["inter_avg"] for event in scored] if scored[0]["inter_avg"] is not None else None,
        "clients": names(run),
        "each": [[float(np.mean(event["accuracy"][k])) for event in scored] for k in range(len(names(run)))],
    }


def correlation(run: FinishedRun) -> Data:
    """Cross-correlation of each client's logits with the mean over clients: on public images, and on its own."""
    need(run.labelled, "the models have no classifier of their own: the method learns without labels")
    clients, images = run.clients[:SHOWN], run.public_images(PUBLIC_IMAGES)
    public = None if images is None else against_mean([answers(client, images)[1] for client in run.clients])
    private = []
    for k, client in enumerate(clients):
        own = ready(run.sample(run.scenario.clients[k].train, PUBLIC_IMAGES, f"private {k}"))
        need(len(own) > 1, f"client {client.name} has a single image")
        private.append(against_mean([answers(other, own)[1] for other in run.clients])[k])
    return {"clients": names(run)[:SHOWN], "public": public and public[:SHOWN], "private": private}


def against_mean(logits: list[Tensor]) -> list[list[list[float]]]:
    """K times C×C: each client's logits (N×C) against the mean of all."""
    mean = torch.stack(logits).mean(dim=0)
    return [rounded(cross_correlation(z, mean)) for z in logits]


def similarity(run: FinishedRun) -> Data:
    """Cosine similarities between the same images in each client's eyes; one order for all, alike together."""
    images = shared_images(run, MAP_IMAGES)
    maps = []
    for client in run.clients:
        h = normalize(answers(client, images)[0], dim=1)
        maps.append(h @ h.T)
    mean = torch.stack(maps).mean(dim=0)
    order = torch.from_numpy(leaves_list(linkage(mean.numpy(), "average")).copy()).long()
    arranged = [rounded(m[order][:, order]) for m in [mean, *maps[:SHOWN]]]
    return {"clients": ["mean of all", *names(run)[:SHOWN]], "maps": arranged}


def tsne(run: FinishedRun) -> Data:
    """Features in two dimensions: each client's own test images (intra) and the others' (inter)."""
    tests = run.tests(TEST_IMAGES)
    panels = []
    for k, client in enumerate(run.clients[:6]):
        home = run.homes[k]
        for kind, sets in (("intra", [home]), ("inter", [name for name in tests if name != home])):
            chosen = [tests[name] for name in sets if name in tests]
            if chosen:
                images = torch.cat([ready(test) for test in chosen])
                labels = torch.cat([test.labels for test in chosen])
                picked = torch.linspace(0, len(labels) - 1, min(TEST_IMAGES, len(labels))).long()
                points = flatten(answers(client, images[picked])[0].numpy(), run.seed)
                panels.append(
                    {"client": client.name, "kind": kind, "points": points, "labels": labels[picked].tolist()}
                )
    return {"panels": panels, "classes": list(run.scenario.classes)}


def flatten(features: np.ndarray, seed: int) -> list[list[float]]:
    """N×d → N×2 by t-SNE from a PCA, scaled to [−1, 1]."""
    need(len(features) > 8, f"t-SNE needs more than {len(features)} images")
    reduced = PCA(min(30, *features.shape), random_state=seed).fit_transform(features)
    method = TSNE(2, init="pca", perplexity=min(30, (len(features) - 1) / 4), random_state=seed)
    points = method.fit_transform(reduced.astype(np.float32))
    return (points / np.abs(points).max()).round(3).tolist()


def cka(run: FinishedRun) -> Data:
    """How alike the clients' features are on the same images: public ones, or a sample of all test sets."""
    need(len(run.clients) > 1, "there is a single client")
    device = run.clients[0].device
    images = shared_images(run, CKA_IMAGES).to(device)
    batches = [chunk for chunk in images.split(CKA_BATCH) if len(chunk) >= 4]
    need(batches, f"CKA needs more than {len(images)} images")
    found = compare_models([client.model for client in run.clients], batches)
    return {"clients": names(run), "matrix": rounded(found.nan_to_num(0.0))}


def exchange(run: FinishedRun) -> Data:
    """FedCT: one exchange played again; what each model keeps, by class and by layer. Moves the clients' models."""
    need(isinstance(run.method, FedExg), f"{run.method.name} exchanges no models (fedexg, pgct and fedct do)")
    moved = play_exchange(run)
    told = exchange_cka(run, moved, CKA_IMAGES)
    told["global"] = [[None if v != v else round(v, 4) for v in row] for row in told["global"]]
    return {"classes": list(run.scenario.classes), "retention": retention(run, moved), "cka": told}


def shared_images(run: FinishedRun, count: int) -> Tensor:
    """Images that every client can be asked about, as models see them: public ones, or a sample of all test sets."""
    if (images := run.public_images(count)) is not None:
        return images
    return torch.cat([ready(test) for test in run.tests(max(1, count // len(run.scenario.tests))).values()])


def correlation_distance(run: FinishedRun) -> Data:
    """FedFoA: distances between the clients' feature-correlation matrices R, early, half-way and late."""
    told = [(e["round"] + 1, e["measures"]["correlation_distance"]) for e in run.events
            if e.get("measures", {}).get("correlation_distance")]  # fmt: skip
    need(told, "no feature-correlation matrices were exchanged (FedFoA does that)")
    picked = dict.fromkeys([0, len(told) // 2, len(told) - 1])
    return {"clients": names(run), "rounds": [told[k][0] for k in picked], "maps": [told[k][1] for k in picked],
            "all_rounds": [r for r, _ in told], "mean": [off_diagonal_mean(m) for _, m in told]}  # fmt: skip


def off_diagonal_mean(matrix: list[list[float | None]]) -> float | None:
    values = [v for i, row in enumerate(matrix) for j, v in enumerate(row) if i != j and v is not None]
    return float(np.mean(values)) if values else None


def domain_distance(run: FinishedRun) -> Data:
    """Proxy A-distance between a client's domain and another, in its model's features, against its accuracy there."""
    need(len(run.scenario.tests) > 1, "all clients share one test set, so there are no domains to compare")
    need(run.accuracy, "no round was evaluated")
    tests = run.tests(TEST_IMAGES)
    points: list[dict[str, Any]] = []
    need(all(home in tests for home in run.homes), "clients have no test set of their own")
    order = list(run.scenario.tests)
    for k, client in enumerate(run.clients[:SHOWN]):
        features = {name: answers(client, ready(test))[0].numpy() for name, test in tests.items()}
        for name in (name for name in order if name != run.homes[k]):
            distance = proxy_a_distance(features[run.homes[k]], features[name], run.seed)
            score = (run.accuracy or [])[k][order.index(name)]
            points.append({"client": client.name, "test": name, "distance": round(distance, 4), "accuracy": score})
    rho = rank_correlation([p["distance"] for p in points], [p["accuracy"] for p in points])
    return {"points": points, "rank_correlation": rho, "clients": names(run)[:SHOWN], "tests": order}


def activation(run: FinishedRun) -> Data:
    """Grad-CAM of every client on the same images, two of each test set; the class is the true one."""
    need(run.labelled, "the models have no classifier of their own: the method learns without labels")
    clients = run.clients[:6]
    rows = []
    for name, test in list(run.tests(2).items())[:6]:
        heats = [grad_cam(c.model, ready(test).to(c.device), test.labels.to(c.device)).cpu() for c in clients]
        sends = [answers(c, ready(test))[1].argmax(dim=1) for c in clients]
        for n in range(len(test)):
            rows.append({
                "test": name,
                "label": run.scenario.classes[int(test.labels[n])],
                "image": test.images[n].permute(1, 2, 0).tolist(),
                "heat": [rounded(heat[n]) for heat in heats],
                "said": [run.scenario.classes[int(said[n])] for said in sends],
            })  # fmt: skip
    return {"clients": [c.name for c in clients], "rows": rows}


def names(run: FinishedRun) -> list[str]:
    return [client.name for client in run.clients]


def rounded(matrix: Tensor) -> list[list[float]]:
    return np.round(matrix.cpu().double().numpy(), 4).tolist()
