"""``report.html``: one self-contained page for one or many runs. It loads nothing from the network.

The charts are drawn by assets/charts.js instead of plotly.js: the page has a few hundred kilobytes instead of five
megabytes.
"""

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from statistics import mean
from string import Template
from typing import Any

from fedchoir.core.metrics import METRICS
from fedchoir.reporting.costs import budget_of
from fedchoir.reporting.difference_tables import all_differences, references
from fedchoir.reporting.headline import SCOPES, check_metric
from fedchoir.reporting.pareto import pareto
from fedchoir.reporting.run_data import Run, matrices_each, metric_facts, read_runs, run_data
from fedchoir.reporting.run_groups import Number, Row, delta, grouped, rows
from fedchoir.reporting.store import extra
from fedchoir.reporting.tables import as_text, notes
from fedchoir.utils.errors import UsageError
from fedchoir.version import __version__

MAX_BYTES = 10_000_000
FIGURE_BYTES = 6_000_000
"""Total size of the figures of `fedchoir analyse` that a page embeds; further figures are left out."""
IMAGE_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
SCRIPTS = ("dom.js", "charts.js", "sections.js")


def write_report(paths: Sequence[Path], out: Path | None = None, metric: str | None = None) -> Path:
    """Write the report of the runs in some folders; by default ``report.html`` in the first folder, with the headline
    metric of the runs."""
    if metric is not None:
        check_metric(metric)
    runs = read_runs(paths)
    if not runs:
        raise UsageError(f"no run in {', '.join(map(str, paths))} has an evaluated round yet")
    first = paths[0]
    target = out or (first if first.is_dir() else first.parent) / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_page(runs, metric), encoding="utf-8")
    return target


def report_page(runs: Sequence[Run], metric: str | None = None) -> str:
    """The HTML of a report."""
    methods = list(dict.fromkeys(run.result.method for run in runs))
    scenarios = list(dict.fromkeys(Path(run.result.scenario).name for run in runs))
    seeds = sorted({run.result.seed for run in runs})
    title = f"{_one_or_count(methods, 'methods')} on {_one_or_count(scenarios, 'scenarios')}"
    subtitle = (
        f"{len(runs)} run{'s' * (len(runs) > 1)} · seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} · "
        f"fedchoir {__version__}"
    )
    main = (
        f'<main><h1>{html.escape(title)}</h1><p class="subtitle">{html.escape(subtitle)}</p>'
        '<div id="group-place"></div><div id="content"></div>'
        "<footer>Made by fedchoir. This page is one file and loads nothing from the network.</footer></main>"
    )
    nav = '<nav id="nav" aria-label="sections"></nav>'
    return html_page(
        title, nav, main, (*SCRIPTS, "comparison.js", "report.js"), page_data(runs, metric), connect="'none'"
    )


def _one_or_count(names: Sequence[str], plural: str) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} {plural}"


def html_page(title: str, nav: str, main: str, scripts: Sequence[str], data: Any, *, connect: str) -> str:
    """A page with its style, scripts and data inside. Its content security policy allows only these scripts."""
    code = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in scripts) + "})();\n"
    return Template(asset("page.html")).substitute(
        title=html.escape(title), nav=nav, main=main, style=asset("page.css"), data=script_json(data), code=code,
        digest=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(), connect=connect,
    )  # fmt: skip


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can close the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    return (files("fedchoir.reporting") / "assets" / name).read_text(encoding="utf-8")


def page_data(runs: Sequence[Run], metric: str | None = None) -> dict[str, Any]:
    """The data of a report: the runs, and groups of table rows that refer to them by position."""
    runs = sorted(runs, key=lambda run: extra(run.result, "order") or 0)  # in the order of the sweep file
    position = {id(run.result): k for k, run in enumerate(runs)}
    table_rows = rows([run.result for run in runs], metric)
    groups, compared = grouped(table_rows), references(table_rows)
    shown = {id(result): row.metric for _, group_rows in groups for row in group_rows for result in row.results}
    matrices, room = matrices_each(runs), FIGURE_BYTES
    data = []
    for run, name in zip(runs, run_names([run.folder for run in runs]), strict=True):
        figures, room = figures_of(run.folder, room)
        run_metric = shown[id(run.result)]
        data.append({**run_data(run, name, matrices=matrices, metric=run_metric), "figures": figures})
    made = [
        {
            "title": short_group(title),
            "metric": metric_facts(group_rows[0].metric),
            "rows": [row_data(row, group_rows, position) for row in group_rows],
            "notes": notes(group_rows),
            "differences": all_differences(group_rows),
            "pareto": pareto(group_rows, table_rows),
            "text": {
                **{style: as_text(group_rows, style) for style in ("latex", "md")},
                "csv": as_text(group_rows, "csv", references=compared),
            },
        }
        for title, group_rows in groups
    ]
    return {"groups": made, "runs": data}


def row_data(row: Row, group_rows: Sequence[Row], position: dict[int, int]) -> dict[str, Any]:
    printed = {scope: row.published.printed[scope] for scope in SCOPES if scope in row.published.printed}
    return {
        "label": row.label,
        "seeds": len(row.results),
        **{scope: as_json(row.number(scope)) for scope in SCOPES},
        "worst": as_json(row.worst()),
        "spread": as_json(row.spread()),
        "metrics": [metric_row(row, name) for name in METRICS if row.number("intra", name)],
        "delta": delta(row, group_rows, "inter"),
        "published": {m: {"mean": n.value, "sd": n.sd, "title": f"{n.table}, {n.label}"} for m, n in printed.items()},
        "traffic": row.bytes_per_round,
        "messages": mean(result.messages for result in row.results),
        "seconds": row.seconds,
        "budget": budget_of(row),
        "runs": [position[id(result)] for result in row.results],
    }


def metric_row(row: Row, metric: str) -> dict[str, Any]:
    """One metric of a table row."""
    scopes = {scope: as_json(row.number(scope, metric)) for scope in SCOPES}
    return {
        **metric_facts(metric),
        **scopes,
        "worst": as_json(row.worst(metric)),
        "spread": as_json(row.spread(metric)),
    }


def as_json(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else asdict(number)


def short_group(title: str) -> str:
    """The title of a group with the name of a user's data folder instead of its whole path."""
    scenario, dot, rest = title.partition(" · ")
    return f"{Path(scenario).name or scenario}{dot}{rest}"


def run_names(folders: Sequence[Path]) -> list[str]:
    """The paths of the folders below the folder that contains all of them.

    >>> run_names([Path("/a/runs/x/seed0"), Path("/a/runs/y/seed0")])
    ['x/seed0', 'y/seed0']
    """
    absolute = [folder.absolute() for folder in folders]
    common = os.path.commonpath([folder.parent for folder in absolute])
    return [folder.relative_to(common).as_posix() for folder in absolute]


def figures_of(folder: Path, room: int) -> tuple[list[dict[str, str]], int]:
    """The figures of `fedchoir analyse` as data URLs, at most ``room`` bytes; and the room that is left."""
    found = []
    for item in read_index(folder / "analysis"):
        path = folder / "analysis" / Path(str(item["file"])).name  # a bare name: it cannot leave the folder
        if path.suffix not in IMAGE_TYPES or not path.is_file() or path.stat().st_size > room:
            continue
        content = base64.b64encode(path.read_bytes()).decode()
        room -= len(content)
        source = f"data:{IMAGE_TYPES[path.suffix]};base64,{content}"
        found.append({"src": source, **{key: str(item.get(key, "")) for key in ("title", "caption")}})
    return found, room


def read_index(folder: Path) -> list[dict[str, Any]]:
    """The figures listed in the ``index.json`` of an analysis folder; empty if there is none."""
    try:
        index = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError):
        return []
    listed = index if isinstance(index, list) else []
    return [item for item in listed if isinstance(item, dict) and {"name", "file"} <= item.keys()]
