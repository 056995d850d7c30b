"""Write the results pages under ``docs/`` from the store.

    python -m tools.results_pages results docs

Every file of ``results/pages/`` is the template of one page: ``results.md`` of ``docs/results.md``, and so on. A
template may use the numbers of the stored runs (see `tools.prose_numbers`) and ``section("digits")``,
which inserts the tables of ``results/digits/runs.jsonl`` with the text of ``results/digits/about.toml``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from posixpath import relpath
from textwrap import fill
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fedchoir.experiments.sweep import read_sweep
from fedchoir.reporting.run_groups import Row, over_seeds
from fedchoir.reporting.store import evaluated
from fedchoir.reporting.tables import as_text
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from tools.method_table import method_tables, pareto_panels, pareto_with_bytes
from tools.prose_numbers import Numbers


class About(BaseModel):
    """The fields of ``about.toml``."""

    model_config = ConfigDict(extra="forbid")

    title: str
    command: str  # runs the section again
    data: list[str] = []  # how our data differ from the paper's
    chosen: str = ""  # how options were chosen, where they were
    reading: str = ""  # one paragraph above the tables, a template like the pages
    tables: list[Literal["accuracy", "clients", "best-round", "methods"]] = ["accuracy"]  # one after the other
    picture: list[str] = []  # labels of the rows whose accuracy is drawn over the rounds
    # whether intra- is drawn against inter-domain accuracy: a panel for each augmentation, or all rows with their bytes
    pareto: Literal["", "by-augmentation", "with-bytes"] = ""
    traffic: bool = False  # whether accuracy is drawn against the bytes of a round


def read_about(folder: Path) -> About:
    try:
        return About(**read_toml(folder / "about.toml"))
    except ValueError as error:
        raise UsageError(f"{folder / 'about.toml'}: {error}") from None


def pages(root: Path) -> dict[str, str]:
    """Return the text of every page by its path below ``docs/``."""
    numbers = Numbers(root)
    made = {}
    for template in sorted((root / "pages").rglob("*.md")):
        path = template.relative_to(root / "pages")
        assets = relpath("assets", path.parent.as_posix())
        text = numbers.render(template.read_text(), section=partial(section, numbers=numbers, assets=assets))
        made[path.as_posix()] = f"{text.rstrip()}\n"
    return made


def section(name: str, numbers: Numbers, assets: str) -> str:
    """Return one section of a page: its tables, how to read them, and how they were made."""
    folder = numbers.root / name
    about, table_rows = read_about(folder), numbers.rows(name)
    picture = f"![Accuracy over the rounds: {about.title}]({assets}/results-{name}.svg)" if about.picture else ""
    pareto = f"![Intra- against inter-domain accuracy: {about.title}]({assets}/pareto-{name}.svg)"
    traffic = f"![Accuracy against bytes: {about.title}]({assets}/traffic-{name}.svg)"
    blocks = [
        f"## {about.title}",
        fill(numbers.render(about.reading, name), 120, break_long_words=False, break_on_hyphens=False),
        *(method_tables(table_rows) if t == "methods" else as_text(table_rows, "md", t) for t in about.tables),
        picture,
        pareto if about.pareto else "",
        traffic if about.traffic else "",
        f"Data: {' '.join(about.data)}" if about.data else "",
        f"How options were chosen: {about.chosen}" if about.chosen else "",
        f"{spent(table_rows)} Files: `results/{name}/`. Run it again:",
        f"```bash\n{about.command}\n```",
        not_run(folder / "open.toml"),
    ]
    return "\n\n".join(block.strip() for block in blocks if block) + "\n"


def spent(table_rows: Iterable[Row]) -> str:
    """Return the number of runs and their time on each device. Runs that shared a device are counted in full."""
    seconds: dict[str, list[float]] = {}
    for result in (result for row in table_rows for result in row.results):
        seconds.setdefault(result.device, []).append(result.seconds["total"])
    devices = [f"{len(each)} runs on {device} ({sum(each) / 60:.0f} minutes)" for device, each in seconds.items()]
    return f"Cost: {', '.join(devices)}; several runs shared a device."


def not_run(file: Path) -> str:
    """Return the rows of ``open.toml``, which are ready to run."""
    if not file.exists():
        return ""
    labels = [variant["label"] for variant in read_sweep(file).variant]
    return f"Not run yet (`results/{file.parent.name}/{file.name}`): {'; '.join(labels)}."


def curves(table_rows: Iterable[Row], labels: list[str]) -> list[dict[str, Any]]:
    """Return the accuracy over the rounds of the rows with these labels: [mean, standard deviation] over seeds."""
    drawn = []
    for row in (row for row in table_rows if row.label in labels):
        runs = [{event["round"]: event for event in evaluated(result)} for result in row.results]
        rounds = sorted(set.intersection(*map(set, runs)))
        line: dict[str, Any] = {"label": row.label, "rounds": [r + 1 for r in rounds]}
        for metric in ("intra", "inter"):
            numbers = [over_seeds([run[r][f"{metric}_avg"] for run in runs]) for r in rounds]
            line[metric] = [[number.mean, number.sd or 0.0] for number in numbers]
        drawn.append(line)
    if missing := set(labels) - {line["label"] for line in drawn if line["rounds"]}:
        raise UsageError(f"no rounds are stored for {', '.join(sorted(missing))}: remove it from picture")
    return drawn


def traffic_points(table_rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the bytes of a round and both accuracies of every row that exchanges any: [mean, standard deviation] over
    seeds."""
    points = []
    for row in (row for row in table_rows if row.bytes_per_round):
        scores = {metric: row.number(metric) for metric in ("intra", "inter")}
        known = {metric: [number.mean, number.sd or 0.0] for metric, number in scores.items() if number is not None}
        points.append({"label": row.label, "bytes": row.bytes_per_round, **known})
    return points


def main(root: str, docs: str) -> None:
    from fedchoir.reporting import figures

    numbers, assets = Numbers(Path(root)), Path(docs) / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    for path, text in pages(Path(root)).items():
        (Path(docs) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(docs) / path).write_text(text)
    for folder in (about.parent for about in Path(root).glob("*/about.toml")):
        about = read_about(folder)
        if about.picture:
            lines = curves(numbers.rows(folder.name), about.picture)
            figures.save(figures.curves, {"rows": lines}, assets / f"results-{folder.name}.svg")
        if about.pareto:
            made = pareto_with_bytes if about.pareto == "with-bytes" else pareto_panels
            points = made(numbers.rows(folder.name))
            figures.save(figures.pareto, points, assets / f"pareto-{folder.name}.svg")
        if about.traffic:
            drawn = {"rows": traffic_points(numbers.rows(folder.name))}
            figures.save(figures.traffic, drawn, assets / f"traffic-{folder.name}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
