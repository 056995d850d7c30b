"""Draws the data of `fedchoir.reporting.analysis` with matplotlib, in colour-blind-safe colours, as PNG or SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette, with a darker yellow for white paper
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a900")
DASHES = ("-", "-", "-", "-", "--", "--", "--", "--")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9,
    "axes.titleweight": "bold", "svg.fonttype": "none", "svg.hashsalt": "fedchoir", "figure.dpi": 130,
}  # fmt: skip
Data = dict[str, Any]


def save(draw: Callable[[Data], Figure], data: Data, path: Path) -> None:
    """Draw data into a file. The same data gives the same bytes."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with rc_context(STYLE):
        draw(data).savefig(path, metadata=metadata)


def panels(count: int, columns: int, *, size: float = 2.3, wide: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in rows of ``columns``."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=((wide or size) * columns, size * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, k + 1) for k in range(count)]


def heat(axes: Axes, matrix: Sequence[Sequence[float | None]], title: str, **options: Any) -> Any:
    """Draw a matrix as colours, without ticks."""
    shown = axes.imshow(np.array(matrix, dtype=float), interpolation="nearest", **options)
    axes.set(title=title, xticks=[], yticks=[])
    return shown


def accuracy(data: Data) -> Figure:
    figure, axes = panels(2, 2, size=2.9, wide=3.7)
    for k, key in enumerate(("intra", "inter")):
        if data[key] is not None:
            axes[0].plot(data["rounds"], data[key], color=OKABE_ITO[k], label=key)
    for k, (name, values) in enumerate(zip(data["clients"][:16], data["each"], strict=False)):
        axes[1].plot(data["rounds"], values, color=OKABE_ITO[k % 8], linestyle=DASHES[k % 8], label=name)
    for ax, title in zip(axes, ("over all clients", "each client, mean over test sets"), strict=True):
        over_rounds(ax, title)
        ax.legend(frameon=False, fontsize=7)
    return figure


def over_rounds(ax: Axes, title: str) -> None:
    """Label the axes of a plot of accuracy against rounds."""
    ax.set(title=title, xlabel="round", ylabel="accuracy, %")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.25)


def curves(data: Data) -> Figure:
    """Accuracy of table rows against rounds: means over seeds with a band of one standard deviation."""
    figure, axes = panels(2, 2, size=3.2, wide=4.2)
    for metric, ax in zip(("intra", "inter"), axes, strict=True):
        for k, row in enumerate(data["rows"]):
            mean, sd = (np.array(row[metric])[:, column] for column in (0, 1))
            colour, dash = OKABE_ITO[k % 8], "-" if k < 8 else "--"
            ax.plot(row["rounds"], mean, dash, color=colour, label=row["label"])
            ax.fill_between(row["rounds"], mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
        over_rounds(ax, f"{metric}-domain accuracy")
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def pareto(data: Data) -> Figure:
    """Intra- against inter-domain accuracy, a panel for each title; a line joins the points of the Pareto front."""
    figure, axes = panels(len(data["panels"]), 2, size=4.2, wide=4.6)
    kinds = list(dict.fromkeys(point["kind"] for panel in data["panels"] for point in panel["points"]))
    for ax, panel in zip(axes, data["panels"], strict=True):
        for k, kind in enumerate(kinds):
            points = [point for point in panel["points"] if point["kind"] == kind]
            x, y = ([point[scope] for point in points] for scope in ("intra", "inter"))
            ax.scatter(x, y, color=OKABE_ITO[k], marker="osD^"[k % 4], s=16, label=kind)
        best = [panel["points"][k] for k in panel["front"]]
        ax.plot([p["intra"] for p in best], [p["inter"] for p in best], color="#999999", linewidth=0.8, zorder=0)
        middle = sum(ax.get_xlim()) / 2
        for point in (panel["points"][k] for k in panel["named"]):
            side = "right" if point["intra"] > middle else "left"
            ax.annotate(point["label"], (point["intra"], point["inter"]), fontsize=6, ha=side,
                        xytext=(-4 if side == "right" else 4, 3), textcoords="offset points")  # fmt: skip
        ax.set(title=panel["title"], xlabel="intra-domain accuracy, %", ylabel="inter-domain accuracy, %")
        ax.grid(alpha=0.25)
    marks, labels = axes[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=8)
    return figure


def traffic(data: Data) -> Figure:
    """Accuracy of table rows against the bytes of a round, with one standard deviation over seeds."""
    figure, axes = panels(2, 2, size=3.2, wide=4.2)
    for metric, ax in zip(("intra", "inter"), axes, strict=True):
        for k, row in enumerate(data["rows"]):
            mean, sd = row[metric]
            mark = "osD^v<>P"[k % 8]
            ax.errorbar(row["bytes"], mean, yerr=sd, fmt=mark, color=OKABE_ITO[k % 8], capsize=3, label=row["label"])
        ax.set(title=f"{metric}-domain accuracy", xlabel="bytes of a round", ylabel="accuracy, %", xscale="log")
        ax.grid(alpha=0.25)
    marks, labels = axes[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def heat_maps(maps: dict[str, Any], columns: int, label: str, **options: Any) -> Figure:
    """Matrices by title, with one colour bar."""
    figure, axes = panels(len(maps), columns, size=2.0)
    drawn = [heat(ax, matrix, title, **options) for ax, (title, matrix) in zip(axes, maps.items(), strict=True)]
    figure.colorbar(drawn[-1], ax=axes, shrink=0.8, label=label)
    return figure


def correlation(data: Data) -> Figure:
    maps = {
        f"{name}, {kind}": matrix
        for kind in ("public", "private")
        for name, matrix in zip(data["clients"], data[kind] or (), strict=bool(data[kind]))
    }
    label = "correlation with the mean of all clients"
    return heat_maps(maps, len(data["clients"]), label, vmin=-1, vmax=1, cmap="PuOr_r")


def similarity(data: Data) -> Figure:
    maps = dict(zip(data["clients"], data["maps"], strict=True))
    return heat_maps(maps, 5, "cosine similarity", vmin=np.min(data["maps"]), vmax=1, cmap="viridis")


def tsne(data: Data) -> Figure:
    clients = list(dict.fromkeys(panel["client"] for panel in data["panels"]))
    kinds = list(dict.fromkeys(panel["kind"] for panel in data["panels"]))
    figure, axes = panels(len(clients) * len(kinds), len(clients), size=2.2)
    colours = class_colours(len(data["classes"]))
    place = {(kind, name): axes[r * len(clients) + c] for r, kind in enumerate(kinds) for c, name in enumerate(clients)}
    for panel in data["panels"]:
        ax, points = place.pop((panel["kind"], panel["client"])), np.array(panel["points"])
        ax.scatter(points[:, 0], points[:, 1], c=[colours[label] for label in panel["labels"]], s=5, linewidths=0)
        ax.set(title=f"{panel['client']}, {panel['kind']}", xticks=[], yticks=[])
    for ax in place.values():
        ax.set_axis_off()
    if len(data["classes"]) <= 20:
        marks = [axes[0].scatter([], [], color=colours[k], s=14, label=name) for k, name in enumerate(data["classes"])]
        figure.legend(handles=marks, loc="outside lower center", ncols=10, frameon=False, fontsize=7)
    return figure


def class_colours(count: int) -> list[Any]:
    """One colour per class: colour-blind-safe for up to ten classes."""
    if count <= 10:
        return [*OKABE_ITO, "#999999", "#7a3b00"][:count]
    return [colormaps["turbo"](0.05 + 0.9 * k / (count - 1)) for k in range(count)]


def correlation_distance(data: Data) -> Figure:
    figure, axes = panels(len(data["maps"]) + 1, 4, size=2.5)
    top = max((v for m in data["maps"] for row in m for v in row if v is not None), default=1.0)
    shown: Any = None
    for ax, number, matrix in zip(axes, data["rounds"], data["maps"], strict=False):
        shown = heat(ax, matrix, f"round {number}", vmin=0, vmax=top, cmap="viridis")
        ax.set_xticks(range(len(data["clients"])), data["clients"], rotation=90, fontsize=6)
        ax.set_yticks(range(len(data["clients"])), data["clients"], fontsize=6)
    figure.colorbar(shown, ax=axes[:-1], shrink=0.8, label="‖R_i − R_j‖")
    axes[-1].plot(data["all_rounds"], data["mean"], color=OKABE_ITO[0])
    axes[-1].set(title="mean over pairs", xlabel="round")
    axes[-1].grid(alpha=0.25)
    return figure


def cka(data: Data) -> Figure:
    room = 0.35 * len(data["clients"])
    figure, (ax,) = panels(1, 1, size=min(7.0, 2.6 + room), wide=min(7.6, 3.2 + room))
    square(figure, ax, data["clients"], data["matrix"], "")
    return figure


def square(figure: Figure, ax: Axes, names: list[str], matrix: list[list[float | None]], title: str) -> None:
    """Draw a matrix of clients by clients with values from 0 to 1, with numbers for up to ten clients."""
    shown = heat(ax, matrix, title, vmin=0, vmax=1, cmap="viridis")
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    cells = [(i, j, v) for i, row in enumerate(matrix) for j, v in enumerate(row) if v is not None]
    for i, j, value in cells if len(names) <= 10 else []:
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.6 else "white", fontsize=7)
    figure.colorbar(shown, ax=ax, shrink=0.8)


def exchange(data: Data) -> Figure:
    shown = data["retention"][:2]
    figure, axes = panels(len(shown) + 2, 2, size=2.8, wide=4.2)
    place = np.arange(len(data["classes"]))
    for ax, row in zip(axes, shown, strict=False):
        for k, (key, offset) in enumerate((("before", -0.2), ("after", 0.2))):
            ax.bar(place + offset, [value or 0 for value in row[key]], 0.4, color=OKABE_ITO[k], label=key)
        kept = "" if row["kept"] is None else f", keeps {row['kept']:.0%}"
        ax.set(title=f"{row['source']} → {row['target']}{kept}", xlabel="class", ylabel="accuracy, %")
        ax.legend(frameon=False, fontsize=7)
    local, between = axes[-2:]
    layers = data["cka"]["local"]
    local.plot(range(len(layers)), [np.nanmean(values) for values in layers.values()], marker="o", color=OKABE_ITO[0])
    local.set_xticks(range(len(layers)), list(layers), rotation=45, ha="right", fontsize=7)
    local.set(title="CKA before and after, by layer", ylim=(0, 1.05))
    local.grid(alpha=0.25)
    square(figure, between, data["cka"]["clients"], data["cka"]["global"], "CKA between clients, after")
    return figure


def domain_distance(data: Data) -> Figure:
    figure, (ax,) = panels(1, 1, size=3.6, wide=5.4)
    marks = "osD^vP*X"
    for p in data["points"]:
        k, t = data["clients"].index(p["client"]), data["tests"].index(p["test"])
        ax.scatter(p["distance"], p["accuracy"], color=OKABE_ITO[k % 8], marker=marks[t % 8], s=44)
    for k, name in enumerate(data["clients"][:8]):
        ax.scatter([], [], color=OKABE_ITO[k % 8], label=f"model of {name}")
    for t, name in enumerate(data["tests"][:8]):
        ax.scatter([], [], color="grey", marker=marks[t % 8], label=f"test set of {name}")
    rho = data["rank_correlation"]
    ax.set(xlabel="proxy A-distance to the own domain", ylabel="accuracy on the other domain, %",
           title="" if rho is None else f"Spearman's ρ = {rho:.2f}")  # fmt: skip
    ax.set_xlim(-0.05, 2.05)
    ax.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False, fontsize=7)
    return figure


def activation(data: Data) -> Figure:
    columns = 1 + len(data["clients"])
    figure, axes = panels(columns * len(data["rows"]), columns, size=1.35)
    for r, row in enumerate(data["rows"]):
        image = np.array(row["image"], dtype=np.uint8)
        own = axes[r * columns]
        own.imshow(image)
        own.set_title(f"{row['test']}: {row['label']}", fontsize=7)
        for k, heat_map in enumerate(row["heat"]):
            ax = axes[r * columns + 1 + k]
            ax.imshow(image.mean(axis=2), cmap="gray", vmin=0, vmax=255)
            ax.imshow(np.array(heat_map), cmap="viridis", alpha=0.6, vmin=0, vmax=1)
            ax.set_title(f"{data['clients'][k]}: {row['predicted'][k]}", fontsize=7)
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    return figure
