"""Losses and accuracies stay at a site under differential privacy and with secure sums, and everything that reads a run
copes without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.in_process import InProcessTransport, run_on_sites
from tests.helpers import events
from typer.testing import CliRunner

from fedchoir import Experiment
from fedchoir.cli.app import app
from fedchoir.deploy.log import LogObserver
from fedchoir.deploy.policy import Policy
from fedchoir.engines.messages import Envelope
from fedchoir.reporting.live.run_index import RunIndex
from fedchoir.reporting.tables import rows, terminal_tables

AUTO = Policy(trust_server=True)
NOISY = {"sync": "epoch", "dp_noise": 1.0, "local_batch": 16, "local_epochs": 1}
PROTECTED: dict[str, dict[str, Any]] = {
    "differential privacy": {"settings": NOISY},
    "secure sums": {"secure": True, "settings": {"sync": "epoch"}},
    "strict secure sums": {"secure": "strict", "settings": {"sync": "epoch"}},
}


def spied(transport: InProcessTransport) -> list[dict[str, Any]]:
    """The headers of all replies."""
    headers: list[dict[str, Any]] = []
    for worker in transport.workers:
        handle = worker.handle

        def spy(text: str, blobs: list[bytes], handle: Any = handle) -> Envelope:
            reply: Envelope = handle(text, blobs)
            headers.append(reply.header)
            return reply

        worker.handle = spy  # type: ignore[method-assign]
    return headers


@pytest.mark.parametrize("changes", PROTECTED.values(), ids=list(PROTECTED))
def test_no_reply_has_a_loss_an_accuracy_or_a_count(
    changes: dict[str, Any], small: Callable[..., Experiment], tmp_path: Path
) -> None:
    replies: list[list[dict[str, Any]]] = []
    experiment = small("fedmd", rounds=2, **changes)
    result, _ = run_on_sites(experiment, tmp_path, policy=AUTO, change=lambda t: replies.append(spied(t)))
    assert replies[0]
    assert all(not header.get("deferred") for header in replies[0])
    assert all(header.get("keys", {}).get("clipped", 0) == 0 for header in replies[0])
    assert all(not any(losses.values()) for event in events(experiment) for losses in [event["losses"]])
    assert all(event["accuracy"] == [None] * 3 and event["intra_avg"] is None for event in events(experiment))
    assert (result.accuracy, result.intra_avg) == ([], None)
    assert "no client reports accuracies" in result.notes


def test_a_policy_may_allow_them_or_forbid_them_everywhere(small: Callable[..., Experiment], tmp_path: Path) -> None:
    allowed = small("fedmd", "allowed", rounds=1, settings=NOISY)
    result, _ = run_on_sites(allowed, tmp_path / "a", policy=AUTO.model_copy(update={"metrics": True}))
    assert result.intra_avg is not None
    forbidden = small("fedmd", "forbidden", rounds=1)
    result, _ = run_on_sites(forbidden, tmp_path / "b", policy=AUTO.model_copy(update={"metrics": False}))
    assert result.intra_avg is None
    plain = small("fedmd", "plain", rounds=1)
    result, _ = run_on_sites(plain, tmp_path / "c", policy=AUTO)
    assert result.intra_avg is not None


def test_one_site_that_reports_nothing_is_left_out_of_the_table_only(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    def silence(transport: InProcessTransport) -> None:
        transport.workers[1].policy = AUTO.model_copy(update={"metrics": False})

    result, _ = run_on_sites(small("fedmd", rounds=1), tmp_path, policy=AUTO, change=silence)
    assert len(result.clients) == 2
    assert not any(event["left_out"] for event in events(small("fedmd", rounds=1)))


def test_tables_report_live_page_and_log_cope_without_accuracies(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = small("fedmd", rounds=2, **PROTECTED["secure sums"])
    result, _ = run_on_sites(experiment, tmp_path / "sites", policy=AUTO)
    assert experiment.out is not None
    assert list(terminal_tables(rows([result])))
    lines: list[str] = []
    for event in events(experiment):
        LogObserver(lines.append).round(event)
    assert "no accuracies reported" in lines[0]
    index = RunIndex(experiment.out.parent)
    (summary,) = index.runs()
    assert summary["intra"] is None
    data = index.run(summary["id"])
    assert data is not None
    assert data["intra"] == [None, None]
    runner = CliRunner()
    for command in (
        ["compare", str(experiment.out)], ["compare", str(experiment.out), "--per-client"],
        ["report", str(experiment.out), "--out", str(tmp_path / "report.html")],
    ):  # fmt: skip
        done = runner.invoke(app, command)
        assert done.exit_code == 0, (command, done.output, done.exception)
    assert "no client reports accuracies" in (tmp_path / "report.html").read_text()
