"""Leave-one-domain-out tables: the score on each domain while no client has it, and the mean over the domains."""

import json
from collections.abc import Sequence
from statistics import mean

from fedchoir.core.metrics import METRICS
from fedchoir.reporting.headline import score_of
from fedchoir.reporting.render import Cell, Sheet, ranked
from fedchoir.reporting.run_groups import Number, Row, over_seeds
from fedchoir.utils.errors import UsageError

OPTION = "held_out"
NOTE = "a column: the clients' models on a domain that none of them had; the mean is over all domains of the table"

Line = Sequence[Row]
"""The rows of one method and setting that differ in the domain that is held out."""


def held_out_sheets(table_rows: Sequence[Row]) -> list[Sheet]:
    """One table for each scenario, number of rounds and metric, with a line for each method and setting."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in table_rows:
        result = row.results[0]
        if result.settings.get(OPTION) is not None:
            group = f"{result.scenario} · {result.rounds} rounds · unseen {METRICS[row.metric].heading}"
            settings = {name: value for name, value in result.settings.items() if name != OPTION}
            identity = json.dumps([row.label, result.profile, result.public, settings], sort_keys=True)
            groups.setdefault(group, {}).setdefault(identity, []).append(row)
    if not groups:
        raise UsageError("no domain is held out in these runs: run them with --set held_out=DOMAIN")
    return [_sheet(group, list(lines.values())) for group, lines in groups.items()]


def _sheet(group: str, lines: Sequence[Line]) -> Sheet:
    domains = list(dict.fromkeys(_domain(row) for line in lines for row in line))
    better = METRICS[lines[0][0].metric].better
    shown = [[domain] for domain in domains] + [domains]
    columns = [ranked([_over_seeds(line, names) for line in lines], better) for names in shown]
    cells = zip([Cell(line[0].label) for line in lines], *columns, strict=True)
    return Sheet(group, ("method", *domains, "mean"), tuple(cells), (NOTE,))


def _over_seeds(line: Line, domains: Sequence[str]) -> Number | None:
    """The mean over domains of each seed that has all of them, over seeds."""
    found: dict[int, dict[str, float]] = {}
    for row in line:
        for result in row.results:
            if (score := score_of(result, row.metric, "unseen")) is not None:
                found.setdefault(result.seed, {})[_domain(row)] = score
    means = [mean(scores[name] for name in domains) for scores in found.values() if set(domains) <= set(scores)]
    return over_seeds(means, line[0].digits) if means else None


def _domain(row: Row) -> str:
    return str(row.results[0].settings[OPTION])
