"""The benchmarks run and do the work that they describe."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.benchmarks.conftest import BENCHMARKS

import checkpoints
import condensed_quality
import flute
import membership
import naive
import overhead
import scale
import server_scale
import synthetic_federation
from fedchoir import Experiment, run

NAMES = sorted({path.stem for path in BENCHMARKS.glob("*.py")} - {"pfl_worker"})  # it runs in another environment
NEEDS = {"flower_sim": "flwr", "report_page": "playwright"}


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_imported(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("method", ["fedavg", "feddc"])
def test_scale_measures_one_number_of_clients(method: str) -> None:
    options = argparse.Namespace(one=300, cohort=3, rounds=2, method=method, model="logistic", budget="1MB")
    found = scale.measure(options)
    assert found["cpu"] > 0
    assert found["wall"] > 0
    assert found["peak"] > 50


def test_flutes_setting_learns() -> None:
    pool, test = map(flute.unnormalised, flute.images(None))
    seconds, accuracy = flute.train(pool, test, 6)
    assert seconds.cpu > 0
    assert accuracy > 40


def test_checkpoints_are_written_as_each_way_says(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--clients", "3", "--images", "4", "--batch", "4", "--size", "16", "--rounds", "3"]
    checkpoints.main([*sizes, "--model", "logistic"])
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["every", "every", "auto", "never"]
    assert lines[0].endswith(" 3")
    assert lines[3].endswith(" 1")


def test_clients_are_windows_into_one_pool() -> None:
    pool = synthetic_federation.synthetic(100, 16)
    for count, distinct in ((5, 100), (500, 100)):
        parts = list(synthetic_federation.windows(pool, count, 20))
        assert len(parts) == count
        first, last = pool.inputs.data_ptr(), pool.inputs[-1].data_ptr()
        assert all(first <= part.inputs.data_ptr() <= last and len(part) == 20 for part in parts)
        assert len({image.data_ptr() for part in parts for image in part.inputs}) == distinct


SMALL = ["--models", "resnet10@4,simple_cnn@4,vgg9@4,resnet12@4", "--repeats", "1"]


def test_a_round_does_the_work_of_a_plain_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--epochs", "1", "--public-size", "32", "--private", "16,16,16,16"]
    monkeypatch.setattr("sys.argv", ["naive", *SMALL, *sizes])
    naive.main()
    assert "CPU time  plain" in capsys.readouterr().out


def test_a_round_is_compared_with_the_bare_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "SETTINGS", overhead.SETTINGS | {"local_epochs": 1, "public_size": 64, "private": 16})
    monkeypatch.setattr("sys.argv", ["overhead", *SMALL])
    overhead.main()
    assert "round / bare: median" in capsys.readouterr().out


def test_membership_inference_on_an_untrained_model_is_guessing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "SETTINGS", membership.SETTINGS | {"private": 40, "public_size": 100})
    engine, scenario, epsilon = membership.train(noise=0.0, epochs=0, seed=0)
    client = engine.clients[0]
    test = scenario.tests[scenario.clients[0].domain]
    assert epsilon == []
    assert 0.3 < membership.auc(client.logits, client.private, test) < 0.7
    assert 0.3 < membership.auc(membership.distilled(engine, client, 0), client.private, test) < 0.7


@pytest.mark.parametrize("family", server_scale.FAMILIES)
def test_server_scale_counts_the_bytes_of_a_payload(family: str) -> None:
    found = server_scale.in_new_process(family, 300, 20, 2)
    assert found["seconds"] > 0
    assert found["up"] == {
        "weights, mean": 4 * (3 * 32 * 32 * 10 + 10), "weights, median: a robust rule": 4 * (3 * 32 * 32 * 10 + 10),
        "logits on 100 public samples, mean": 4 * 100 * 10, "logits and similarities, mean": 4 * (100 * 10 + 100 * 99),
    }.get(family, found["up"])  # fmt: skip


def test_memory_of_a_mean_does_not_grow_with_the_participants() -> None:
    """400 models of 123 kB are 49 MB; the server holds 16 of them at most."""
    few, many = (server_scale.in_new_process("weights, mean", 400, n, 1)["memory"] for n in (20, 400))
    assert many < few + 15


def test_fit_of_server_scale_finds_the_formula() -> None:
    points = [(10, 10), (1000, 10), (1000, 100), (100_000, 100), (100_000, 1000)]
    coefficients, residuals = server_scale.fitted(points, [2 + 0.003 * k + 0.5 * n for k, n in points])
    assert coefficients == pytest.approx([2, 0.003, 0.5])
    assert abs(residuals).max() < 1e-9


def test_condensed_sets_of_a_run_are_compared_with_real_samples(
    tmp_path: Path, small: Callable[..., Experiment], capsys: pytest.CaptureFixture[str]
) -> None:
    run(small("choir", "measured", rounds=1, settings={"condense_steps": 5}))
    condensed_quality.main([str(tmp_path / "measured"), "--steps", "40"])
    title, *rows = capsys.readouterr().out.splitlines()
    assert title == "measured: green, red, white; mean"
    found = {row.split(": ")[0].strip(): float(row.split("; ")[1]) for row in rows}
    assert found["private samples"] >= found["sets"] > 0  # five steps from noise teach no more than real samples
