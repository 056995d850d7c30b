"""The data of every figure: one function of a run each, with JSON values as result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn.functional import normalize

from fedchoir.core.client import Client
from fedchoir.losses import cross_correlation
from fedchoir.methods.fedexg import FedExg
from fedchoir.reporting import figures
from fedchoir.reporting.analysis.load import FinishedRun, normalised, outputs
from fedchoir.reporting.analysis.measures import compare_models, grad_cam, proxy_a_distance, rank_correlation
from fedchoir.reporting.analysis.retention import exchange_cka, repeat_exchange, retention

PUBLIC_IMAGES = 1000
TEST_IMAGES = 400
MAP_IMAGES = 64
CKA_IMAGES, CKA_BATCH = 1000, 200
MAX_CLIENTS = 24
"""Clients that a figure with one panel per client shows at most."""
NO_OWN_MODELS = "all clients have the global model; with eval_model = 'own' a checkpoint has the clients' own models"

Data = dict[str, Any]
Compute = Callable[[FinishedRun], Data]


class Analysis(NamedTuple):
    """One figure: the function that computes its data and the function that draws it."""

    title: str
    caption: str
    compute: Compute
    draw: Callable[[Data], Figure]


ANALYSES: dict[str, Analysis] = {}


def analysis(title: str, draw: Callable[[Data], Figure]) -> Callable[[Compute], Compute]:
    """Register a function as an analysis; its docstring is the caption of the figure."""

    def register(function: Compute) -> Compute:
        caption = " ".join((function.__doc__ or "").split())
        ANALYSES[function.__name__.replace("_", "-")] = Analysis(title, caption, function, draw)
        return function

    return register


class NotAvailable(Exception):
    """A figure that cannot be made from this run; the message gives the reason."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise NotAvailable(reason)


@analysis("Accuracy against rounds", figures.accuracy)
def accuracy(run: FinishedRun) -> Data:
    """Intra- and inter-domain accuracy against rounds: the mean over clients, and each client. As in FCCL+ Fig. 6 and
    FBCL Fig. 4."""
    scored = [event for event in run.events if event["accuracy"] is not None]
    require(scored, "no round was evaluated")
    return {
        "rounds": [event["round"] + 1 for event in scored],
        "intra": [event["intra_avg"] for event in scored],
        "inter": [event["inter_avg"] for event in scored] if scored[0]["inter_avg"] is not None else None,
        "clients": run.names,
        "each": [[_mean(event["accuracy"][k]) for event in scored] for k in range(len(run.clients))],
    }


def _mean(values: list[float] | None) -> float | None:
    return float(np.mean(values)) if values else None


@analysis("Cross-correlation matrices", figures.correlation)
def correlation(run: FinishedRun) -> Data:
    """Each client's logits against the mean over clients (eq. 1 of FCCL+), on public images and on its own private
    ones. A strong diagonal means that clients agree on the classes. As in FCCL Fig. 5 and FCCL+ Fig. 8."""
    require(run.labelled, "the models have no classifier of their own: the method learns without labels")
    images = run.public_images(PUBLIC_IMAGES)
    public = None if images is None else _with_mean([outputs(client, images)[1] for client in run.clients])
    private = []
    for k, client in enumerate(run.clients[:MAX_CLIENTS]):
        own = normalised(run.sample(run.scenario.clients[k].train, PUBLIC_IMAGES, f"private {k}"))
        require(len(own) > 1, f"client {client.name} has a single image")
        private.append(_with_mean([outputs(other, own)[1] for other in run.clients])[k])
    return {"clients": run.names[:MAX_CLIENTS], "public": public and public[:MAX_CLIENTS], "private": private}


def _with_mean(logits: list[Tensor]) -> list[list[list[float]]]:
    """K times C×C: the correlation of each client's logits (N×C) with the mean over clients."""
    mean = torch.stack(logits).mean(dim=0)
    return [_rounded(cross_correlation(z, mean)) for z in logits]


@analysis("Instance-similarity maps", figures.similarity)
def similarity(run: FinishedRun) -> Data:
    """Cosine similarity between the same images in every client's features, which FISL aligns (eq. 3 of FCCL+). One
    order for all maps puts similar images together."""
    images = _shared_images(run, MAP_IMAGES)
    maps = []
    for client in run.clients:
        h = normalize(outputs(client, images)[0], dim=1)
        maps.append(h @ h.T)
    mean = torch.stack(maps).mean(dim=0)
    order = torch.from_numpy(leaves_list(linkage(mean.numpy(), "average")).copy()).long()
    arranged = [_rounded(m[order][:, order]) for m in [mean, *maps[:MAX_CLIENTS]]]
    return {"clients": ["mean of all", *run.names[:MAX_CLIENTS]], "maps": arranged}


@analysis("t-SNE of features", figures.tsne)
def tsne(run: FinishedRun) -> Data:
    """Test images in each client's features, coloured by class: of its own domain (intra) and of the others (inter). As
    in FCCL Fig. 4 and FCCL+ Fig. 9."""
    tests = run.tests(TEST_IMAGES)
    panels = []
    for client, own in zip(run.clients[:6], run.domains, strict=False):
        for kind, sets in (("intra", [own]), ("inter", [name for name in tests if name != own])):
            chosen = [tests[name] for name in sets if name in tests]
            if chosen:
                images = torch.cat([normalised(test) for test in chosen])
                labels = torch.cat([test.labels for test in chosen])
                picked = torch.linspace(0, len(labels) - 1, min(TEST_IMAGES, len(labels))).long()
                points = _embed(outputs(client, images[picked])[0].numpy(), run.seed)
                panels.append(
                    {"client": client.name, "kind": kind, "points": points, "labels": labels[picked].tolist()}
                )
    return {"panels": panels, "classes": list(run.scenario.classes)}


def _embed(features: np.ndarray, seed: int) -> list[list[float]]:
    """N×d → N×2 by PCA and t-SNE, scaled to [−1, 1]."""
    require(len(features) > 8, f"t-SNE needs more than {len(features)} images")
    reduced = PCA(min(30, *features.shape), random_state=seed).fit_transform(features)
    method = TSNE(2, init="pca", perplexity=min(30, (len(features) - 1) / 4), random_state=seed)
    points = method.fit_transform(reduced.astype(np.float32))
    return (points / np.abs(points).max()).round(3).tolist()


@analysis("CKA between clients", figures.cka)
def cka(run: FinishedRun) -> Data:
    """Similarity of two clients' features on the same images, for any architectures: 1 means equal up to rotation and
    scale. Where a global model is evaluated, the clients' own models before the last averaging. As FedCT's global view,
    Fig. 10."""
    require(len(run.clients) > 1, "there is only one client")
    require(run.own != {}, NO_OWN_MODELS)
    images = _shared_images(run, CKA_IMAGES).to(run.clients[0].device)
    batches = [chunk for chunk in images.split(CKA_BATCH) if len(chunk) >= 4]
    require(batches, f"CKA needs more than {len(images)} images")
    with run.before_averaging() as clients:
        found = compare_models([client.model for client in clients], batches)
    return {"clients": run.names, "matrix": _rounded(found.nan_to_num(0.0))}


def _shared_images(run: FinishedRun, count: int) -> Tensor:
    """Normalised images for all clients: public ones, or a sample of all test sets."""
    if (images := run.public_images(count)) is not None:
        return images
    return torch.cat([normalised(test) for test in run.tests(max(1, count // len(run.scenario.tests))).values()])


@analysis("Distance between feature correlations", figures.correlation_distance)
def correlation_distance(run: FinishedRun) -> Data:
    """Distances between the clients' feature-correlation matrices R over rounds. As in FedFoA Fig. 6."""
    found = [(event["round"] + 1, matrix) for event in run.events
             if (matrix := event.get("measures", {}).get("correlation_distance"))]  # fmt: skip
    require(found, "no feature-correlation matrices were exchanged (FedFoA does that)")
    picked = dict.fromkeys([0, len(found) // 2, len(found) - 1])
    return {"clients": run.names, "rounds": [found[k][0] for k in picked], "maps": [found[k][1] for k in picked],
            "all_rounds": [r for r, _ in found], "mean": [_off_diagonal_mean(m) for _, m in found]}  # fmt: skip


def _off_diagonal_mean(matrix: list[list[float | None]]) -> float | None:
    return _mean([v for i, row in enumerate(matrix) for j, v in enumerate(row) if i != j and v is not None])


@analysis("Domain discrepancy and inter-domain accuracy", figures.domain_distance)
def domain_distance(run: FinishedRun) -> Data:
    """Proxy A-distance between the client's domain and another in its model's features (0: inseparable, 2: always
    separable by a linear classifier), against the model's accuracy on the other domain. The papers' bounds use this
    quantity."""
    require(len(run.scenario.tests) > 1, "all clients share one test set, so there are no domains to compare")
    require(run.accuracy, "no round was evaluated")
    tests, accuracies = run.tests(TEST_IMAGES), run.accuracy or []
    require(all(name in tests for name in run.domains), "clients have no test set of their own")
    points: list[dict[str, Any]] = []
    for k, (client, own) in enumerate(zip(run.clients[:MAX_CLIENTS], run.domains, strict=False)):
        features = {name: outputs(client, normalised(test))[0].numpy() for name, test in tests.items()}
        for column, name in enumerate(tests):
            if name != own and accuracies[k]:
                distance = round(proxy_a_distance(features[own], features[name], run.seed), 4)
                point = {"client": client.name, "test": name, "distance": distance}
                points.append({**point, "accuracy": accuracies[k][column]})
    rho = rank_correlation([p["distance"] for p in points], [p["accuracy"] for p in points])
    return {"points": points, "rank_correlation": rho, "clients": run.names[:MAX_CLIENTS], "tests": list(tests)}


@analysis("Class-activation maps", figures.activation)
def activation(run: FinishedRun) -> Data:
    """Grad-CAM of each client's model for the true class, on the last feature map, and the predicted class. Where a
    global model is evaluated, the clients' own models before the last averaging. As in FedCT Fig. 11."""
    require(run.labelled, "the models have no classifier of their own: the method learns without labels")
    require(run.own != {}, NO_OWN_MODELS)
    with run.before_averaging() as clients:
        return _activation(run, clients[:6])


def _activation(run: FinishedRun, clients: list[Client]) -> Data:
    classes = run.scenario.classes
    rows = []
    for name, test in list(run.tests(2).items())[:6]:
        images = normalised(test)
        heats = [grad_cam(c.model, images.to(c.device), test.labels.to(c.device)).cpu() for c in clients]
        predictions = [outputs(c, images)[1].argmax(dim=1) for c in clients]
        for n in range(len(test)):
            rows.append({
                "test": name,
                "label": classes[int(test.labels[n])],
                "image": test.inputs[n].permute(1, 2, 0).tolist(),
                "heat": [_rounded(heat[n]) for heat in heats],
                "predicted": [classes[int(predicted[n])] for predicted in predictions],
            })  # fmt: skip
    return {"clients": [c.name for c in clients], "rows": rows}


@analysis("Knowledge retention in a model exchange", figures.exchange)
def exchange(run: FinishedRun) -> Data:
    """One exchange repeated from the last global model: accuracy on each class before and after cross-training, CKA of
    each model before and after by layer, and CKA between clients. As in FedCT Fig. 9 and 10."""
    require(isinstance(run.method, FedExg), f"{run.method.name} exchanges no models (fedexg, pgct and fedct do)")
    moved = repeat_exchange(run)
    measured = exchange_cka(run, moved, CKA_IMAGES)
    measured["global"] = [[None if v != v else round(v, 4) for v in row] for row in measured["global"]]
    return {"classes": list(run.scenario.classes), "retention": retention(run, moved), "cka": measured}


def _rounded(matrix: Tensor) -> list[list[float]]:
    return np.round(matrix.cpu().double().numpy(), 4).tolist()
