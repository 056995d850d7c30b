"""How many runs of one agreed file a site takes part in: a second run could single it out of a secure sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy import in_process
from tests.deploy.in_process import InProcessTransport, run_on_sites, stop_before
from tests.helpers import Stop

from fedchoir import Experiment
from fedchoir.core.secure_exchange import SecureExchange
from fedchoir.deploy import client_worker
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.run_record import RunRecord
from fedchoir.engines.messages import MessageError
from fedchoir.payload import Payload
from fedchoir.utils.errors import QuorumError

VICTIM = 1
FILE = "f" * 64


@pytest.fixture
def four(shapes: Path, tmp_path: Path) -> str:
    folder = tmp_path / "four"
    folder.mkdir()
    for name, source in (("a", "red"), ("b", "green"), ("c", "white"), ("d", "red")):
        (folder / f"{name}.npz").write_bytes((shapes / f"{source}.npz").read_bytes())
    return str(folder)


class TwoRuns:
    """A server that runs one file twice with one seed, the second time without the victim. Its sums are strict."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, experiment: Callable[..., Experiment], work: Path) -> None:
        self._patch, self._experiment, self._work = monkeypatch, experiment, work
        self.means: list[list[Payload]] = []  # the first sum of each run
        self.sent: list[Payload] = []  # what the victim sent in the first run, before the mask
        compute, mask = SecureExchange._mean, ClientWorker._masked

        def keep_mean(*arguments: Any) -> Any:
            self.means.append(compute(*arguments))
            return self.means[-1]

        def keep_payload(worker: ClientWorker, reply: Any, message: Any, *more: Any) -> Any:
            if message.client == VICTIM and not self.sent:
                self.sent = list(client_worker.unpack_reply(reply)[0])
            return mask(worker, reply, message, *more)

        monkeypatch.setattr(SecureExchange, "_mean", keep_mean)
        monkeypatch.setattr(ClientWorker, "_masked", keep_payload)

    def run(self, name: str, run: str, policy: Policy, *, without: int | None = None) -> None:
        def leave_out(transport: InProcessTransport) -> None:
            transport.fail = lambda client, header: "lost" if client == without and "work" in header else ""

        self._patch.setattr(in_process, "RUN", run)
        settings = {"sync": "epoch"}
        experiment = self._experiment("fedmd", name, rounds=1, secure="strict", settings=settings)
        run_on_sites(experiment, self._work, policy=policy, change=leave_out)

    def error(self) -> float:
        """How far the difference of the two sums is from what the victim sent, relative to it."""
        one, two = (torch.cat([payload["logits"] for payload in means]) for means in self.means)
        truth = torch.cat([payload["logits"] for payload in self.sent])
        return float((4 * one - 3 * two - truth).abs().max() / truth.abs().max())


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch, small: Callable[..., Experiment], four: str, tmp_path: Path) -> TwoRuns:
    return TwoRuns(monkeypatch, lambda *a, **k: small(*a, scenario=four, **k), tmp_path / "sites")


def test_a_second_run_without_a_victim_is_refused(attack: TwoRuns) -> None:
    policy = Policy(trust_server=True, secure="strict")
    attack.run("one", "1" * 16, policy)
    with pytest.raises(QuorumError, match="max_runs = 1"):
        attack.run("two", "2" * 16, policy, without=VICTIM)
    assert len(attack.means) == 1


def test_the_attack_succeeds_at_sites_that_allow_a_second_run(attack: TwoRuns) -> None:
    """Without it the test above would show nothing."""
    policy = Policy(trust_server=True, secure="strict", max_runs=2)
    attack.run("one", "1" * 16, policy)
    attack.run("two", "2" * 16, policy, without=VICTIM)
    assert attack.error() < 1e-3


def test_the_same_run_may_be_resumed(small: Callable[..., Experiment], tmp_path: Path) -> None:
    policy = Policy(trust_server=True, secure="strict", metrics=True)
    experiment = small("fedmd", rounds=2, secure="strict", settings={"sync": "epoch"})
    with pytest.raises(Stop):
        run_on_sites(experiment, tmp_path / "sites", policy=policy, change=stop_before(20))
    result, transport = run_on_sites(experiment, tmp_path / "sites", policy=policy, resume=True)
    assert result.rounds == 2
    assert len((transport.workers[0].folder / "runs.jsonl").read_text().splitlines()) == 1


def test_a_refused_message_is_no_run(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """A server that asks for what the site does not do must not use up its only run."""
    policy = Policy(trust_server=True, secure="strict")
    with pytest.raises(QuorumError, match="requires strict secure aggregation"):
        run_on_sites(small("fedmd", "plain", rounds=1), tmp_path / "sites", policy=policy)
    assert not list((tmp_path / "sites").rglob("runs.jsonl"))
    experiment = small("fedmd", "sums", rounds=1, secure="strict", settings={"sync": "epoch"})
    _, transport = run_on_sites(experiment, tmp_path / "sites", policy=policy)
    assert all((worker.folder / "runs.jsonl").exists() for worker in transport.workers)


def test_runs_are_counted_by_agreed_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    record = RunRecord(path, FILE, 2)
    for run in ("a", "b", "a", "b"):
        record.add(run)
    assert len(path.read_text().splitlines()) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    for refuse in (record.check, record.add):
        with pytest.raises(MessageError) as refused:
            refuse("c")
        assert str(refused.value) == (
            "refused: another run. This site has taken part in 2 of this agreed file, and its policy has max_runs = 2"
        )
    RunRecord(path, FILE, None).add("c")
    RunRecord(path, "0" * 64, 1).add("d")  # another file
    with pytest.raises(MessageError, match="in 3 of this agreed file, and its policy has max_runs = 3"):
        RunRecord(path, FILE, 3).add("e")


@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: [lines[0].replace(FILE, "0" * 64), *lines[1:]],
        lambda lines: [lines[0].replace('"run": "a"', '"run": "x"'), *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: ["{}", *lines],
        lambda lines: ["not JSON", *lines],
    ],
)
def test_a_changed_record_stops_the_site(tamper: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for run in "abc":
        RunRecord(path, FILE, None).add(run)
    path.write_text("\n".join(tamper(path.read_text().splitlines())) + "\n")
    for limit in (None, 1, 9):
        with pytest.raises(MessageError, match=r"this site's record of runs .* was changed or cut") as refused:
            RunRecord(path, FILE, limit).check("a")
        assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"secure": True}, 1),
        ({"secure": "strict"}, 1),
        ({"secure": "strict", "max_runs": 5}, 5),
        ({"secure": "strict", "max_runs": "none"}, None),
        ({"max_runs": 1}, 1),
    ],
)
def test_the_default_is_one_run_where_secure_sums_are_required(fields: dict[str, Any], limit: int | None) -> None:
    assert Policy(trust_server=True, **fields).run_limit == limit
