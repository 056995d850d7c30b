"""The audit log: what a site's operator reads about a run, and that nobody changes it unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.in_process import RUN, InProcessTransport, run_on_sites

from fedchoir import Experiment
from fedchoir.deploy.audit import AuditLog, read_audit, readable_lines, summarise
from fedchoir.deploy.policy import Policy
from fedchoir.engines.messages import MessageError
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

NOISY = {"sync": "epoch", "dp_noise": 1.0, "local_batch": 16, "local_epochs": 1}


def test_what_was_asked_what_left_and_what_it_cost(small: Callable[..., Experiment], tmp_path: Path) -> None:
    policy = Policy(trust_server=True, max_epsilon=50)
    _, transport = run_on_sites(small("fedmd", rounds=2, settings=NOISY), tmp_path, policy=policy)
    name = transport.workers[0].site.name
    lines = read_audit(tmp_path / name / "audit.jsonl")
    assert [line["kind"] for line in lines] == ["asked", "sent"] * 3
    asked, sent = lines[2], lines[3]
    assert asked["text"].startswith("round 2: the server asks for public_update, ")
    assert asked["actions"][-1] == "share"
    assert asked["run"] == sent["run"] == RUN
    (payload,) = sent["payloads"]
    assert payload["name"] == "logits"
    assert payload["numbers"] == 40 * 4
    assert payload["bytes"] == 40 * 4 * 4
    assert payload["min"] <= payload["mean"] <= payload["max"]
    assert sent["metrics"] is False
    assert "no losses or accuracies; 3 noisy steps cost ε " in sent["text"]
    assert sent["text"].endswith("of 50")
    assert (tmp_path / name / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_reply_does_not_leave_without_its_line(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    def change(transport: InProcessTransport) -> None:
        monkeypatch.setattr(AuditLog, "sent", full)

    with pytest.raises(RuntimeError, match="OSError at this site; its operator finds the reason in its log"):
        run_on_sites(small("fedmd", rounds=1), tmp_path, change=change)


def test_refusals_are_recorded_with_their_reason_and_cannot_forge_lines(tmp_path: Path) -> None:
    shown: list[str] = []
    log = AuditLog(tmp_path / "audit.jsonl", shown.append)
    with pytest.raises(MessageError), log.failures():
        raise MessageError("refused: 'x\n12:00 all is \x1b[32mwell'" + "y" * 10_000)
    with pytest.raises(MessageError, match=r"^KeyError at this site"), log.failures():
        raise KeyError("/srv/patients/alice.png")
    first, second = readable_lines(read_audit(tmp_path / "audit.jsonl"))
    assert "refused: 'x\\n12:00 all is \\x1b[32mwell'" in first
    assert len(first) < 1100
    assert "failed: KeyError: '/srv/patients/alice.png'" in second
    assert all("\n" not in line and "\x1b" not in line for line in (first, second, *shown))


def test_a_changed_log_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(3):
        log.record("asked", f"question {number}")
    assert [line["text"] for line in read_audit(path, last=2)] == ["question 1", "question 2"]
    path.write_text(path.read_text().replace("question 1", "question 7"))
    with pytest.raises(UsageError, match="line 3 was changed, or a line before it was removed"):
        read_audit(path)


def test_the_statistics_are_those_of_the_tensors() -> None:
    torch.manual_seed(0)
    weights = {f"weights/{n}": torch.randn(n + 1, 3) for n in range(4)}
    payloads = [Payload(weights, scalars={"loss": 0.5}), Payload(bad=torch.tensor([float("nan")]))]
    bad, loss, one = summarise(payloads)
    whole = torch.cat([t.flatten() for t in weights.values()])
    assert (one["name"], one["tensors"], one["numbers"], one["bytes"]) == ("weights", 4, 30, 120)
    for name, value in (("min", whole.min()), ("max", whole.max()), ("mean", whole.mean()), ("norm", whole.norm())):
        assert one[name] == pytest.approx(float(value), abs=1e-6)
    assert loss["mean"] == 0.5
    assert bad["mean"] is None
    json.dumps([bad, loss, one], allow_nan=False)
