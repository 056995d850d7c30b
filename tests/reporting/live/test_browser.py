"""The report and the live page in headless Chromium."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright
from tests.fake_results import METHODS, write_comparison, write_run

from fedchoir.reporting.live.server import LiveServer
from fedchoir.reporting.page import MAX_BYTES, write_report

pytestmark = pytest.mark.browser
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
expect.set_options(timeout=60_000)
PHONE = {"width": 390, "height": 844}
MOST_NODES = 3000  # keeps the page fast; `benchmarks/report_page.py` measures the time


@dataclass
class Watched:
    """A page with its console messages and requests."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        """Open the page and wait until it can be used."""
        self.page.goto(url)
        self.page.wait_for_selector("[data-ready=true]")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "these tests need Chromium: run `make browser` (or install chromium with your package manager)"
    with sync_playwright() as playwright:
        folder = str(tmp_path_factory.mktemp("profile"))
        context = playwright.chromium.launch_persistent_context(folder, executable_path=path, args=FLAGS)
        context.set_default_timeout(60_000)
        yield context
        context.close()


@pytest.fixture
def watched(browser: BrowserContext) -> Iterator[Watched]:
    page = browser.new_page()
    opened = Watched(page)
    page.on("console", lambda m: opened.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: opened.errors.append(str(e)))
    page.on("request", lambda r: opened.requests.append(r.url))
    yield opened
    page.close()
    assert opened.errors == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven methods, three seeds, forty rounds."""
    return write_report([write_comparison(tmp_path_factory.mktemp("comparison"))])


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"#summary tbody td:nth-child({number})").all_inner_texts()


def test_report_is_small_and_whole(report: Path, watched: Watched) -> None:
    assert report.stat().st_size < MAX_BYTES
    watched.open(report.as_uri())
    assert watched.page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
    assert watched.page.locator("#summary tbody tr").count() == len(METHODS)
    assert watched.page.locator("figure.chart svg polyline").count() > 2 * len(METHODS)
    assert watched.requests == [report.as_uri()]  # the page loads nothing else


def test_table_sorts_and_shows_published_numbers(report: Path, watched: Watched) -> None:
    page = watched.page
    watched.open(report.as_uri())
    header = page.locator("#summary thead th").all_inner_texts()
    published = next(k for k, name in enumerate(header) if "published inter" in name)
    values = dict(zip(column(page, 1), column(page, published + 1), strict=True))
    assert values["fccl+"].strip() == "50.49"  # FCCL+ Table 8: Digits, CIFAR-100
    inter = next(k for k, name in enumerate(header) if name.strip().startswith("inter")) + 1
    page.click(f"#summary thead th:nth-child({inter}) button")
    down = [float(text.split()[0]) for text in column(page, inter)]
    assert down == sorted(down, reverse=True)
    page.click(f"#summary thead th:nth-child({inter}) button")
    assert [float(text.split()[0]) for text in column(page, inter)] == down[::-1]
    page.click("#summary thead th:nth-child(1) button")
    assert column(page, 1) == sorted(column(page, 1), reverse=True)


def test_slider_moves_through_the_rounds(report: Path, watched: Watched) -> None:
    page = watched.page
    watched.open(report.as_uri())
    first = page.locator("#matrix td.own").first
    last_round = float(first.inner_text())
    page.locator("#round").focus()
    page.keyboard.press("Home")
    assert page.inner_text("#round-label") == "round 1 of 40"
    assert float(first.inner_text()) < last_round
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#round-label") == "round 2 of 40"
    page.select_option("#matrix-minus", "solo|mean")
    assert page.locator("#matrix td").first.inner_text()[0] in "+−0"


def test_legend_theme_and_copying(report: Path, watched: Watched) -> None:
    page = watched.page
    watched.open(report.as_uri())
    lines = page.locator("#s-curves polyline")
    before = lines.count()
    page.locator("#s-curves .legend button").first.click()
    assert lines.count() == before - 2
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != light
    page.click("[data-copy=latex]")
    page.wait_for_selector(".toast")
    assert page.inner_text(".toast") == "LaTeX copied"


def test_differences_follow_the_choices(report: Path, watched: Watched) -> None:
    page = watched.page
    watched.open(report.as_uri())
    table = page.locator("#differences-of-rows")
    assert table.locator("tbody tr").count() == len(METHODS) - 1
    row = table.locator("tbody tr", has_text="fccl+").last
    assert row.locator("td").nth(4).inner_text() == "better"
    shown = row.locator("td").nth(2).inner_text()
    page.select_option("#against", label="fccl+")
    solo = table.locator("tbody tr", has_text="solo")
    assert solo.locator("td").nth(2).inner_text() == shown.replace("+", "−")
    assert solo.locator("td").nth(4).inner_text() == "worse"
    page.click("#s-differences [data-value=intra]")
    assert solo.locator("td").nth(2).inner_text() != shown.replace("+", "−")


@pytest.mark.parametrize("width", [1180, 390])
def test_pareto_plot_is_within_its_card_and_names_do_not_overlap(report: Path, watched: Watched, width: int) -> None:
    page = watched.page
    page.set_viewport_size({"width": width, "height": 900})
    watched.open(report.as_uri())
    assert page.locator("#pareto .mark").count() == len(METHODS)
    assert page.locator("#pareto .error").count() == 2 * len(METHODS)
    assert page.locator("#pareto polyline.front").count() == 1
    assert "fedchoir run fedavg --scenario digits --models simple_cnn" in page.inner_text("#reference-missing")
    boxes = [box for box in (each.bounding_box() for each in page.locator("#pareto .point").all()) if box]
    card = page.locator("#pareto").bounding_box()
    assert card
    assert len(boxes) >= 4
    for k, a in enumerate(boxes):
        assert card["x"] <= a["x"]
        assert a["x"] + a["width"] <= card["x"] + card["width"]
        for b in boxes[:k]:
            beside = a["x"] >= b["x"] + b["width"] or b["x"] >= a["x"] + a["width"]
            assert beside or abs(a["y"] - b["y"]) >= 11  # the height of the letters
    page.locator("#pareto .mark").first.hover()
    assert "bytes / round" in page.inner_text("#pareto .tip")


def test_budget_of_a_client(report: Path, watched: Watched) -> None:
    watched.open(report.as_uri())
    lines = watched.page.locator("#budget tbody tr")
    assert lines.count() == len(METHODS)
    cells = lines.nth(1).locator("td").all_inner_texts()
    assert cells[1] == "30.5 MiB"  # 800 000 bytes a client and round, 40 rounds
    assert cells[3:] == ["–"] * 6  # these runs counted no steps


def test_phone_has_no_sideways_scrolling(report: Path, watched: Watched) -> None:
    watched.page.set_viewport_size(PHONE)
    watched.open(report.as_uri())
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_figures_of_analyse_are_shown(tmp_path: Path, watched: Watched) -> None:
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=3)
    (folder / "analysis").mkdir()
    image = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><script>window.hit=1</script></svg>'
    (folder / "analysis" / "cka.svg").write_text(image)
    index = [
        {"name": "cka", "file": "cka.svg", "title": "CKA", "caption": "alike"},
        {"name": "x", "file": "../task.json"},
    ]
    (folder / "analysis" / "index.json").write_text(json.dumps(index))
    watched.open(write_report([folder]).as_uri())
    images = watched.page.locator("#s-figures img")
    assert images.count() == 1
    assert images.first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
    assert watched.page.evaluate("window.hit") is None


def test_hostile_names_run_nothing(tmp_path: Path, watched: Watched) -> None:
    evil = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
    folder = write_run(tmp_path / "x", "fccl", 0, rounds=3)
    for name in ("result.json", "task.json", "events.jsonl"):
        text = (folder / name).read_text().replace('"fccl"', json.dumps(evil))
        (folder / name).write_text(text.replace("usps", "u</script><b>"))
    watched.open(write_report([folder]).as_uri())
    assert watched.page.evaluate("window.hit") is None
    assert evil in watched.page.inner_text("#summary")


def test_live_page_follows_without_reloading(tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    folder = tmp_path / "runs"
    write_run(folder / "a", "feddf", 0, rounds=12, done=3)
    write_run(folder / "old", "solo", 0, rounds=4)
    with LiveServer(folder, port=0) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        watched.open(server.url)
        expect(page.locator("#t-round b")).to_have_text("3 / 12")
        page.evaluate("window.same = true")
        write_run(folder / "a", "feddf", 0, rounds=12, done=9)
        with (folder / "a" / "events.jsonl").open("a") as file:
            file.write('{"round": 9, "accuracy": [[')
        expect(page.locator("#t-round b")).to_have_text("9 / 12")
        expect(page.locator("#round-label")).to_have_text("round 9 of 12")
        assert "min" in page.inner_text("#t-eta") or "s" in page.inner_text("#t-eta")
        assert page.inner_text("#t-out b") == "1"
        assert "no answer in time" in page.inner_text("#left-out")
        page.click("[data-id=old]")
        expect(page.locator("#t-eta b")).to_have_text("done")
        assert page.evaluate("window.same")  # the page was not reloaded
        assert all(url.startswith(server.url) for url in watched.requests)
        page.goto("about:blank")
        server.shutdown()
