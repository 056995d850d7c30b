"""``report.html``: one file with everything in it, for one run or for many. It loads nothing from anywhere.

The charts are drawn by about 150 lines of our own (assets/charts.js) and not by plotly.js: the page is a few
hundred kilobytes instead of five megabytes, opens at once on a phone, and takes its colours from its own theme.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from fedchoir.reporting.run_data import Run, find_runs, matrices_each, read_run, run_data
from fedchoir.reporting.run_groups import extra
from fedchoir.reporting.tables import Number, Row, as_text, delta, grouped, rows
from fedchoir.utils.errors import UsageError
from fedchoir.version import __version__

MAX_BYTES = 10_000_000
FIGURE_BYTES = 6_000_000
"""Figures of `fedchoir analyse` that a page holds at most; beyond that it names the files."""

MARK = (
    '<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">'
    '<g fill="none" stroke="var(--accent)" stroke-width="2" stroke-linecap="round">'
    '<path d="M3 15V9M7 15V4M11 15v-8M15 15V2"/></g></svg>'
)


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of the runs in some folders; by default ``report.html`` in the first folder."""
    runs = [run for run in map(read_run, find_runs(paths)) if run is not None]
    if not runs:
        raise UsageError(f"no run in {', '.join(map(str, paths))} has an evaluated round yet")
    first = paths[0]
    target = out or (first if first.is_dir() else first.parent) / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_page(runs), encoding="utf-8")
    return target


def report_page(runs: Sequence[Run]) -> str:
    """The whole page as text."""
    data = page_data(runs)
    title = page_title(runs)
    seeds = sorted({run.result.seed for run in runs})
    lead = [
        f"{len(runs)} run{'s' * (len(runs) > 1)}",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"fedchoir {__version__}",
    ]
    body = (
        '<header class="top"><div class="inner">'
        f'<div class="brand">{MARK}<span>fedchoir</span></div><nav id="nav" aria-label="sections"></nav>'
        '<span id="theme-place"></span></div></header>'
        f'<main><h1>{html.escape(title)}</h1><p class="lead">{html.escape(" · ".join(lead))}</p>'
        '<div id="group-place"></div><div id="content"></div>'
        "<footer>Made by fedchoir. This page is one file and loads nothing from anywhere.</footer></main>"
    )
    return html_page(title, body, ("dom.js", "charts.js", "sections.js", "report.js"), data, connect="'none'")


def page_title(runs: Sequence[Run]) -> str:
    methods = list(dict.fromkeys(run.result.method for run in runs))
    scenarios = list(dict.fromkeys(Path(run.result.scenario).name for run in runs))
    what = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    where = scenarios[0] if len(scenarios) == 1 else f"{len(scenarios)} scenarios"
    return f"{what} on {where}"


def html_page(title: str, body: str, scripts: Sequence[str], data: Any, *, connect: str) -> str:
    """A page with style, scripts and data inside. Its policy lets only these very scripts run."""
    code = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in scripts) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{html.escape(title)} · fedchoir</title>\n<style>\n{asset('page.css')}</style></head>\n<body>{body}\n"
        "<noscript>This page draws its tables with JavaScript; everything it needs is inside it.</noscript>\n"
        f'<script type="application/json" id="data">{script_json(data)}</script>\n'
        f"<script>{code}</script></body></html>\n"
    )


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    return (files("fedchoir.reporting") / "assets" / name).read_text(encoding="utf-8")


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Runs and the rows that bundle them, one group for each setting that can be compared."""
    runs = sorted(runs, key=lambda run: extra(run.result, "order") or 0)  # as in the sweep's file, else as found
    number = {id(run.result): k for k, run in enumerate(runs)}
    names = run_names([run.folder for run in runs])
    kept = matrices_each(runs)
    data = [run_data(run, name, matrices=kept) for run, name in zip(runs, names, strict=True)]
    room = FIGURE_BYTES
    for run, told in zip(runs, data, strict=True):
        told["figures"], room = figures_of(run.folder, room)
    groups = [
        {
            "title": short_group(title),
            "rows": [row_data(row, members, number) for row in members],
            "text": {style: as_text(members, style) for style in ("latex", "md", "csv")},
        }
        for title, members in grouped(rows([run.result for run in runs]))
    ]
    return {"groups": groups, "runs": data}


def row_data(row: Row, members: Sequence[Row], number: dict[int, int]) -> dict[str, Any]:
    return {
        "label": row.label,
        "seeds": len(row.results),
        "intra": number_data(row.intra),
        "inter": number_data(row.inter),
        "delta": delta(members, row, "inter"),
        "published": published_data(row),
        "traffic": row.bytes_per_round,
        "messages": mean(result.messages for result in row.results),
        "seconds": row.seconds,
        "runs": [number[id(result)] for result in row.results],
    }


def number_data(number: Number | None) -> dict[str, float | None] | None:
    return None if number is None else {"mean": number.mean, "sd": number.sd}


def published_data(row: Row) -> dict[str, Any] | None:
    """What a paper printed for this row's setting, if one did, and in what the runs are not the paper's."""
    match = row.published
    if not match:
        return None
    numbers = {metric: match.printed[metric] for metric in ("intra", "inter") if metric in match.printed}
    source = ", ".join(dict.fromkeys(number.table for number in numbers.values()))
    if match.other_data:
        source += f" (on {', '.join(dict.fromkeys(n.scenario for n in numbers.values()))}, for orientation)"
    doubts = [f"{n.table}, {n.label}, {m}: {n.doubt}" for m, n in numbers.items() if n.doubt]
    notes = (
        [f"{row.label} is not as in the paper (its own in brackets): {'; '.join(match.notes)}"] if match.notes else []
    )
    return {
        **{m: {"mean": n.value, "sd": n.sd, "title": f"{n.table}, {n.label}"} for m, n in numbers.items()},
        "source": source,
        "notes": [*notes, *doubts],
    }


def short_group(title: str) -> str:
    """A user's folder by its name and not by its whole path."""
    scenario, dot, rest = title.partition(" · ")
    return f"{Path(scenario).name or scenario}{dot}{rest}"


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest names that still tell the folders apart.

    >>> run_names([Path("/a/runs/x/seed0"), Path("/a/runs/y/seed0")])
    ['x/seed0', 'y/seed0']
    """
    for depth in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def figures_of(folder: Path, room: int) -> tuple[list[dict[str, str]], int]:
    """The figures that `fedchoir analyse` left beside a run, as images inside the page, while there is room."""
    index = folder / "analysis" / "index.json"
    try:
        told = json.loads(index.read_text()) if index.exists() else []
    except (OSError, json.JSONDecodeError):
        told = []
    found = []
    for item in told if isinstance(told, list) else []:
        name = str(item.get("file", ""))
        path = index.parent / Path(name).name  # a bare name: an index cannot point elsewhere
        if path.suffix not in TYPES or not path.is_file() or path.stat().st_size > room:
            continue
        content = path.read_bytes()
        room -= len(content) * 4 // 3
        source = f"data:{TYPES[path.suffix]};base64,{base64.b64encode(content).decode()}"
        found.append({"src": source, "title": str(item.get("title", name)), "caption": str(item.get("caption", ""))})
    return found, room
