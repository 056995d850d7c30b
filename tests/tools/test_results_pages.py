from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
from tests.docs.markdown_tables import tables_of
from tools.prose_numbers import Numbers
from tools.results_pages import curves, main, not_run, pages, read_about, spent
from typer.main import get_command

from fedchoir.cli.app import app
from fedchoir.data.registry import info
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.models.registry import SMALL_MODELS
from fedchoir.reporting.store import extra, find_results, read_records, unpack_events
from fedchoir.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
TEMPLATES = sorted(path.relative_to(RESULTS / "pages").as_posix() for path in (RESULTS / "pages").rglob("*.md"))
fresh = cache(pages)


def test_there_is_a_template_for_every_page_and_no_other() -> None:
    written = [DOCS / "results.md", DOCS / "choir.md", *(DOCS / "results").rglob("*.md")]
    assert sorted(path.relative_to(DOCS).as_posix() for path in written) == TEMPLATES


@pytest.mark.parametrize("path", TEMPLATES)
def test_pages_are_what_the_store_gives(path: str, tmp_path: Path) -> None:
    """Cell by cell for the tables, then the text as a whole."""
    built = tmp_path / "page.md"
    built.write_text(fresh(RESULTS)[path])
    for ours, expected in zip(tables_of(DOCS / path), tables_of(built), strict=True):
        assert ours.header == expected.header
        for row, wanted in zip(ours.rows, expected.rows, strict=True):
            assert row == wanted, f"docs/{path}, table at line {ours.line}: run `make results`"
    assert (DOCS / path).read_text() == built.read_text(), f"docs/{path} is out of date: run `make results`"


def test_every_section_is_on_one_page() -> None:
    for about in RESULTS.glob("*/about.toml"):
        title = f"## {read_about(about.parent).title}\n"
        assert [path for path, text in fresh(RESULTS).items() if title in text] != [], title
        assert sum(text.count(title) for text in fresh(RESULTS).values()) == 1, title


def test_the_overview_is_short_and_readings_are_one_paragraph() -> None:
    assert len(fresh(RESULTS)["results.md"].split()) < 4000
    for about in RESULTS.glob("*/about.toml"):
        assert "\n\n" not in read_about(about.parent).reading.strip(), about


def test_verdicts_in_the_overview_follow_their_intervals() -> None:
    claims = next(table for table in tables_of(DOCS / "results.md") if "verdict" in table.header)
    assert len(claims.rows) > 20
    for row in claims.rows:
        interval = row[claims.header.index("ours (95 % interval)")].replace("−", "-")
        low, high = map(float, re.findall(r"\(([-+.\d]+) to ([-+.\d]+)\)", interval)[0])
        expected = "holds" if low > 0 else "does not hold" if high < 0 else "cannot be told"
        verdict = row[claims.header.index("verdict")]
        assert re.fullmatch(rf"{expected}( \((more than )?\d+ seeds\))?", verdict), row
        assert ("seeds" in verdict) == (expected == "cannot be told"), row


def test_a_changed_result_changes_its_page(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "results")
    store = tmp_path / "results" / "fedct" / "runs.jsonl"
    store.write_text(re.sub(r'"intra_avg":[\d.]+,"label"', '"intra_avg":99.0,"label"', store.read_text(), count=1))
    changed = pages(tmp_path / "results")
    assert {path for path in TEMPLATES if changed[path] != fresh(RESULTS)[path]} == {"results/fedct.md"} | (
        {"results.md"} if changed["results.md"] != fresh(RESULTS)["results.md"] else set()
    )


def test_command(tmp_path: Path) -> None:
    (tmp_path / "results" / "pages").mkdir(parents=True)
    (tmp_path / "results" / "pages" / "a.md").write_text('# A\n\n{{ section("forgetting-lite") }}')
    shutil.copytree(RESULTS / "forgetting-lite", tmp_path / "results" / "forgetting-lite")
    main(str(tmp_path / "results"), str(tmp_path / "docs"))
    assert "(assets/results-forgetting-lite.svg)" in (tmp_path / "docs" / "a.md").read_text()
    assert (tmp_path / "docs" / "assets" / "results-forgetting-lite.svg").read_text().startswith("<?xml")


def test_curves_hold_the_stored_rounds() -> None:
    (line,) = curves(Numbers(RESULTS).rows("digits"), ["fccl+"])
    records = [r for r in read_records(RESULTS / "digits" / "runs.jsonl") if r["label"] == "fccl+"]
    inter = [event["inter_avg"] for r in records for event in unpack_events(r["events"]) if event["round"] == 9]
    assert line["inter"][line["rounds"].index(10)] == pytest.approx([mean(inter), stdev(inter)])
    with pytest.raises(UsageError, match="no rounds are stored for fedmd"):
        curves(Numbers(RESULTS).rows("digits-lite"), ["fedmd"])


def test_pictures_exist() -> None:
    for path, text in fresh(RESULTS).items():
        for picture in re.findall(r"\]\(([^)]+\.svg)\)", text):
            assert ((DOCS / path).parent / picture).is_file(), picture


def test_cost_is_listed_by_device() -> None:
    rows = Numbers(RESULTS).rows("digits")
    runs = [r for r in read_records(RESULTS / "digits" / "runs.jsonl") if r["device"] == "NVIDIA H200"]
    minutes = sum(run["seconds"]["total"] for run in runs) / 60
    assert f"{len(runs)} runs on NVIDIA H200 ({minutes:.0f} minutes), " in spent(rows)


def test_a_section_without_a_description_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nameless.about\.toml"):
        read_about(tmp_path / "nameless")


@pytest.mark.parametrize("about", sorted(RESULTS.glob("*/about.toml")), ids=lambda file: file.parent.name)
def test_the_command_of_a_section_is_possible(about: Path) -> None:
    words = shlex.split(read_about(about.parent).command)
    if words[0] == "fedchoir":
        command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
        command.make_context(words[1], words[2:], resilient_parsing=False)  # raises for an unknown option
        assert words[2] == f"results/{about.parent.name}/sweep.toml"
    else:
        assert (ROOT / words[1]).is_file()


# -- sweep files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/sweep.toml")), ids=lambda file: file.parent.name)
def test_the_sweep_file_describes_the_stored_runs(file: Path) -> None:
    """Its command runs the same rows again: same names, labels, published rows, models and settings."""
    jobs = {job.name: job for job in jobs_of(read_sweep(file), Path("runs"))}
    stored = {extra(result, "name"): result for result in find_results([file.parent])}
    assert list(stored) == list(jobs)
    for name, result in stored.items():
        job, plan = jobs[name], make_plan(jobs[name].experiment)
        models = [plan.models[k % len(plan.models)] for k in range(len(result.clients))]
        found = (extra(result, "label"), result.method, result.profile, result.public, result.rounds, result.seed)
        told = job.experiment
        assert found == (job.label, told.method, told.profile, plan.public, plan.rounds, told.seed)
        assert [client["model"] for client in result.clients] == models
        assert (extra(result, "published") or []) == list(job.published)
        settings = json.loads(plan.params.model_dump_json())
        if settings.get("meme") == "auto" and result.settings["meme"] != "auto":  # runs of before there was auto
            settings["meme"] = SMALL_MODELS["image"]
        if result.settings.get("private") is None and settings["private"] == list(info(told.scenario).private or ()):
            settings["private"] = None  # the scenario's, where the profile now has others
        assert {k: v for k, v in result.settings.items() if k in settings and v != settings[k]} == {}


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/open.toml")), ids=lambda file: file.parent.name)
def test_rows_not_run_can_be_run_with_the_same_base(file: Path) -> None:
    planned, run = read_sweep(file), read_sweep(file.with_name("sweep.toml"))
    assert (planned.base, planned.seeds) == (run.base, run.seeds)
    names = {job.name for job in jobs_of(planned, Path("runs"))}
    assert names
    assert not names & {job.name for job in jobs_of(run, Path("runs"))}
    assert all(variant["label"] in not_run(file) for variant in planned.variant)
