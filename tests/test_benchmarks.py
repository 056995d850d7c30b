"""The benchmarks still run, and play what they say."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def named(name: str) -> ModuleType:
        import importlib

        return importlib.import_module(name)

    return named


@pytest.mark.parametrize("method", ["fedavg", "feddc"])
def test_scale_measures_one_number_of_clients(method: str, load) -> None:  # type: ignore[no-untyped-def]
    options = argparse.Namespace(one=300, cohort=3, rounds=2, method=method, model="logistic", budget="1MB")
    found = load("scale").measure(options)
    assert found["cpu"] > 0
    assert found["wall"] > 0
    assert found["peak"] > 50


def test_flutes_setting_learns_alike_both_ways(load) -> None:  # type: ignore[no-untyped-def]
    flute = load("flute")
    pool, test = map(flute.as_they_are, flute.images(None))
    (_, together), (_, alone) = (flute.play(pool, test, 6, how) for how in ("auto", "never"))
    assert together == pytest.approx(alone, abs=0.5)
    assert together > 40


def test_clients_are_windows_into_one_pool(load) -> None:  # type: ignore[no-untyped-def]
    crowd = load("crowd")
    pool = crowd.synthetic(100, 16)
    for count, distinct in ((5, 100), (500, 100)):
        parts = list(crowd.windows(pool, count, 20))
        assert len(parts) == count
        first, last = pool.images.data_ptr(), pool.images[-1].data_ptr()
        assert all(first <= part.images.data_ptr() <= last and len(part) == 20 for part in parts)
        assert len({image.data_ptr() for part in parts for image in part.images}) == distinct


SMALL = ["--models", "resnet10@4,simple_cnn@4,vgg9@4,resnet12@4", "--repeats", "1"]


def test_a_round_is_the_work_of_a_plain_loop(  # type: ignore[no-untyped-def]
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--epochs", "1", "--public-size", "32", "--private", "16,16,16,16"]
    monkeypatch.setattr("sys.argv", ["naive", *SMALL, *sizes])
    load("naive").main()
    assert "CPU time  plain" in capsys.readouterr().out


def test_a_round_is_compared_with_the_bare_work(  # type: ignore[no-untyped-def]
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overhead = load("overhead")
    monkeypatch.setattr(overhead, "SETTINGS", overhead.SETTINGS | {"local_epochs": 1, "public_size": 64, "private": 16})
    monkeypatch.setattr("sys.argv", ["overhead", *SMALL])
    overhead.main()
    assert "round / bare: median" in capsys.readouterr().out
