"""``fedchoir analyse``: every figure that a run can have, as data and as a picture, under ``DIR/analysis``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from fedchoir.core.checkpoint import write_json
from fedchoir.reporting import figures
from fedchoir.reporting.analysis import compute
from fedchoir.reporting.analysis.compute import Data, NotHere
from fedchoir.reporting.analysis.load import FinishedRun
from fedchoir.utils.errors import UsageError

Format = Literal["png", "svg"]


@dataclass(frozen=True)
class Analysis:
    """One figure: how its data is computed and how it is drawn."""

    title: str
    caption: str
    compute: Callable[[FinishedRun], Data]
    draw: Callable[[Data], Figure]


ANALYSES: dict[str, Analysis] = {
    "accuracy": Analysis(
        "Accuracy against rounds", "As in FCCL+ Fig. 6 and FBCL Fig. 4.", compute.accuracy, figures.accuracy
    ),
    "correlation": Analysis(
        "Cross-correlation matrices",
        "Each client's logits against the mean over clients (eq. 1 of FCCL+), on public images and on its own private "
        "ones: a strong diagonal says that all mean the same class. As in FCCL Fig. 5 and FCCL+ Fig. 8.",
        compute.correlation,
        figures.correlation,
    ),
    "similarity": Analysis(
        "Instance-similarity maps",
        "Cosine similarity between the same images in every client's features; what FISL aligns (eq. 3 of FCCL+).",
        compute.similarity,
        figures.similarity,
    ),
    "tsne": Analysis(
        "t-SNE of features",
        "Test images in each client's features, coloured by class: at home (intra) and elsewhere (inter). As in FCCL "
        "Fig. 4 and FCCL+ Fig. 9.",
        compute.tsne,
        figures.tsne,
    ),
    "activation": Analysis(
        "Class-activation maps",
        "Where each client's model looks for the true class (Grad-CAM on the last feature map), and what it says. As "
        "in FedCT Fig. 11.",
        compute.activation,
        figures.activation,
    ),
    "cka": Analysis(
        "CKA between clients",
        "How alike two clients see the same images, whatever their architectures: 1 is the same up to rotation and "
        "scale. As FedCT's global view, Fig. 10.",
        compute.cka,
        figures.cka,
    ),
    "correlation-distance": Analysis(
        "Distance between feature correlations",
        "How far the clients' matrices R are from each other, over rounds. As in FedFoA Fig. 6.",
        compute.correlation_distance,
        figures.correlation_distance,
    ),
    "domain-distance": Analysis(
        "Domain discrepancy and inter-domain accuracy",
        "How well a linear classifier tells another domain from the client's own in its model's features (proxy "
        "A-distance: 0 not at all, 2 always), against the model's accuracy there: the quantity that the papers' bounds "
        "speak of and none of them shows.",
        compute.domain_distance,
        figures.domain_distance,
    ),
    "exchange": Analysis(  # last: it trains the clients' models
        "What an exchange keeps",
        "One exchange played again from the last global model: accuracy on each class before and after cross-training, "
        "and CKA of each model before and after by layer, and between clients. As in FedCT Fig. 9 and 10.",
        compute.exchange,
        figures.exchange,
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What came of one analysis: a file, or why there is none."""

    name: str
    file: str = ""
    why_not: str = ""


def analyse(
    run: FinishedRun,
    *,
    only: Sequence[str] | None = None,
    kind: Format = "png",
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Compute and draw the figures of a run; ``only`` some of them, the others stay as they are."""
    unknown = [name for name in only or [] if name not in ANALYSES]
    if unknown:
        raise UsageError(f"there is no analysis {unknown[0]!r}; known: {', '.join(ANALYSES)}")
    folder = run.folder / "analysis"
    folder.mkdir(exist_ok=True)
    outcomes = []
    for name in [name for name in ANALYSES if not only or name in only]:
        outcome = one(run, name, folder, kind)
        tell(outcome)
        outcomes.append(outcome)
    write_json(folder / "index.json", index(folder, outcomes))
    return outcomes


def one(run: FinishedRun, name: str, folder: Path, kind: Format) -> Outcome:
    analysis = ANALYSES[name]
    try:
        data = analysis.compute(run)
    except NotHere as why:
        return Outcome(name, why_not=str(why))
    path = folder / f"{name}.{kind}"
    write_json(folder / f"{name}.json", data)
    figures.save(analysis.draw, data, path)
    return Outcome(name, file=path.name)


def index(folder: Path, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """What the report shows: the figures made now, and those of an earlier call that were not asked for again."""
    made = {outcome.name: outcome.file for outcome in outcomes}
    before = {item["name"]: item["file"] for item in read_index(folder)}
    files = {name: made.get(name, before.get(name, "")) for name in ANALYSES}
    return [
        {"name": name, "file": files[name], "title": a.title, "caption": a.caption}
        for name, a in ANALYSES.items()
        if files[name] and (folder / files[name]).is_file()
    ]


def read_index(folder: Path) -> list[dict[str, Any]]:
    try:
        told = json.loads((folder / "index.json").read_text())
    except (OSError, json.JSONDecodeError):
        return []
    return [item for item in told if isinstance(item, dict) and {"name", "file"} <= item.keys()]
