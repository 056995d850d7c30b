from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedchoir.reporting import figures

CURVES = {
    "rows": [{"label": k, "rounds": [1, 2], "intra": [[50, 1], [60, 2]], "inter": [[20, 1], [30, 2]]} for k in "ab"]
}


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_data_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    for path in (one, two):
        figures.save(figures.curves, CURVES, path)
    assert one.read_bytes() == two.read_bytes()


def test_curves_have_one_line_per_row_and_metric() -> None:
    intra, inter = figures.curves(CURVES).axes
    assert (intra.get_title(), inter.get_title()) == ("intra-domain accuracy", "inter-domain accuracy")
    assert [line.get_label() for line in inter.lines] == ["a", "b"]
    assert list(inter.lines[0].get_ydata()) == [20, 30]


@pytest.mark.parametrize(("public", "panels"), [(None, 2), ([np.eye(3)] * 2, 4)])
def test_correlations_have_one_panel_per_client_and_kind(public: list | None, panels: int) -> None:
    figure = figures.correlation({"clients": ["a", "b"], "public": public, "private": [np.eye(3)] * 2})
    assert len(figure.axes) == panels + 1  # and the colour bar
    assert figure.axes[panels - 1].get_title() == "b, private"


def test_traffic_has_a_point_for_each_row() -> None:
    rows = [{"label": k, "bytes": 10**n, "intra": [50, 1], "inter": [20, n]} for n, k in enumerate("ab", 3)]
    intra, inter = figures.traffic({"rows": rows}).axes
    assert (intra.get_xscale(), inter.get_title()) == ("log", "inter-domain accuracy")
    assert [float(bar.lines[0].get_xdata()[0]) for bar in inter.containers] == [1000, 10000]


def test_classes_have_distinct_colours() -> None:
    for count in (2, 10, 31):
        assert len({tuple(c) if not isinstance(c, str) else c for c in figures.class_colours(count)}) == count
