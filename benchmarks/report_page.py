"""Seconds until the report of a large comparison is usable in a browser.

    python benchmarks/report_page.py

Seven methods, three seeds, forty rounds in one page, opened several times in a running headless Chromium. The goal: 2 s
from the request to interactive tables and charts.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from fedchoir.reporting.page import write_report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.fake_results import write_comparison

GOAL = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("report_page needs Chromium: run `make browser`")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = write_report([write_comparison(Path(folder))])
        browser = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox"])
        seconds = []
        for _ in range(times):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(report.as_uri())
            page.wait_for_selector("[data-ready=true]")
            seconds.append(time.perf_counter() - start)
            nodes = page.evaluate("document.querySelectorAll('*').length")
            page.close()
        browser.close()
        size = report.stat().st_size / 1e6
    middle = statistics.median(seconds)
    print(f"{size:.2f} MB, {nodes} elements; usable after " + ", ".join(f"{s:.2f}" for s in seconds) + " s")
    print(f"median {middle:.2f} s: {'within' if middle <= GOAL else 'over'} the goal of {GOAL:g} s")


if __name__ == "__main__":
    main()
