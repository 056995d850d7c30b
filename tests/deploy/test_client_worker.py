"""`ClientWorker`: what it refuses, what it writes to disk, and what it logs."""

from __future__ import annotations

import datetime
import errno
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.in_process import RUN, TRUSTING, InProcessTransport, run_on_sites
from tests.helpers import events, states

from fedchoir import Experiment, Settings, methods, run
from fedchoir.data.tabular.encoder import Encoding
from fedchoir.deploy import run_folder
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.payload import Payload
from fedchoir.privacy.budget import PrivacyBudget, Release
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.errors import QuorumError


def header(**changes: Any) -> str:
    values = {"run": RUN, "client": 0, "work": [{"round": 0, "kind": "exchange", "name": "share"}], **changes}
    return json.dumps(values)


def test_runs_cannot_name_files_outside_the_work_folder(tmp_path: Path) -> None:
    worker = ClientWorker(LocalSite("a", "mlp", tmp_path, tmp_path), tmp_path, TRUSTING)
    with pytest.raises(MessageError, match="the request is malformed: run"):
        worker.handle(header(run="../../etc", key_request={"kind": "encryption_key"}), [])
    assert [path.name for path in tmp_path.iterdir()] == ["audit.jsonl"]


def test_only_the_states_that_the_server_may_ask_for_are_stored(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    lines: list[str] = []

    def log(transport: InProcessTransport) -> None:
        transport.workers[0].log = lines.append

    result, transport = run_on_sites(small("fccl+", settings={"sync": "epoch"}), tmp_path / "sites", change=log)
    folder = tmp_path / "sites" / result.clients[0]["name"]
    last = [header for header in transport.sent if header["client"] == 0][-1]
    serials = {last["serial"], last["base"], *last["keep"]} - {0}
    assert {path.name for path in (folder / RUN).glob("state-*")} == {f"state-{n:08d}.safetensors" for n in serials}
    assert re.fullmatch(r"round 1: the server asks for .*share \(0 B received\)", lines[0])
    assert re.match(r"round 1: sends logits 3 tensors with 160 numbers \(640 B, from .*; similarity 3 .*", lines[1])
    assert lines[1].endswith("losses and accuracies")
    asked = r"round 2: the server asks for public_update, .*evaluate, .*share \([\d.]+ KiB received\)"
    assert re.fullmatch(asked, lines[2])


def test_a_full_disk_leaves_the_state_before_intact(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = run_folder.save_tensors

    def full(path: Path, tensors: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def change(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            broken = client == 0 and header["work"][-1]["round"] == 1
            monkeypatch.setattr(run_folder, "save_tensors", full if broken else save)
            return ""

        transport.fail = fail

    experiment = small("fedmd", rounds=3, settings={"sync": "epoch"})
    result, _ = run_on_sites(experiment, tmp_path / "sites", change=change)
    left_out = events(experiment)[1]["left_out"]
    assert [out["client"] for out in left_out] == [result.clients[0]["name"]]
    assert "could not write its state" in left_out[0]["why"]
    assert "its state before this message is intact" in left_out[0]["why"]
    assert not list((tmp_path / "sites").rglob("*.part"))


def fails_with(
    change: Callable[[InProcessTransport], None], experiment: Experiment, work: Path, policy: Policy = TRUSTING
) -> str:
    with pytest.raises(QuorumError) as error:
        run_on_sites(experiment, work, change=change, policy=policy)
    return str(error.value)


NOW = datetime.datetime.now()
OTHER_HOURS = f"{NOW + datetime.timedelta(hours=6):%H:%M}-{NOW + datetime.timedelta(hours=12):%H:%M}"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"secure": True}, "requires secure aggregation, and the server asks without it"),
        ({"secure": "strict"}, "requires strict secure aggregation"),
        ({"max_message_mb": 1e-4}, "104 are allowed"),
        ({"methods": ["fccl+"]}, "method 'fedmd'; this site allows fccl+"),
        ({"settings": {"local_epochs": {"max": 1}}}, "local_epochs = 2; this site allows at most 1"),
        ({"max_parameters": 100}, "parameters, and this site allows 100"),
        ({"min_sites": 4}, "3 sites; this site takes part with at least 4"),
        ({"max_epsilon": 8}, "dp_noise = 0; this site has a privacy budget"),
        ({"public_sha256": "0" * 64}, "is not the one of its policy"),
        ({"hours": OTHER_HOURS}, "this site works from"),
        ({"trust_server": False}, "this site has agreed to no federation"),
    ],
)
def test_what_a_site_requires_is_enforced_there(
    policy: dict[str, Any], message: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = small("fedmd", rounds=1)
    assert message in fails_with(lambda _: None, experiment, tmp_path, Policy(**{"trust_server": True, **policy}))
    assert not list((tmp_path / "sites").rglob("state-*"))


def test_messages_for_another_site_are_refused(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def swap(transport: InProcessTransport) -> None:
        transport.workers.reverse()

    assert "the message is for another site" in fails_with(swap, small("fedmd", rounds=1), tmp_path / "sites")


def test_a_public_set_with_another_digest_is_refused(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def change(transport: InProcessTransport) -> None:
        for worker in transport.workers:
            handle = worker.handle

            def altered(text: str, blobs: list[bytes], handle: Any = handle) -> Envelope:
                header = json.loads(text)
                header["plan"]["public"]["digest"] = "0" * 64
                return handle(json.dumps(header), blobs)  # type: ignore[no-any-return]

            worker.handle = altered  # type: ignore[method-assign]

    assert "its digest differs" in fails_with(change, small("fedmd", rounds=1), tmp_path / "sites")


def test_a_lost_work_folder_is_named(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def lose(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            for path in (tmp_path / "sites").rglob("state-*"):
                path.unlink()
            return ""

        transport.fail = fail

    error = fails_with(lose, small("fedmd", rounds=2, settings={"sync": "epoch"}), tmp_path / "sites")
    assert "there is no state after message 1 of this run: was the --work folder lost?" in error


# -- differential privacy ----------------------------------------------------------------------------------------------

NOISY = {"dp_noise": 1.0, "local_batch": 16, "local_epochs": 1, "sync": "epoch"}


def sent_payloads(transport: InProcessTransport) -> list[bytes]:
    """Every payload that site 0 sent, in order."""
    sent: list[bytes] = []
    handle = transport.workers[0].handle

    def spy(text: str, blobs: list[bytes]) -> Envelope:
        reply = handle(text, blobs)
        sent.extend(reply.blobs)
        return reply

    transport.workers[0].handle = spy  # type: ignore[method-assign]
    return sent


def test_two_runs_of_one_seed_have_different_noise(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """The difference of two runs must not reveal what their data differ in, so noise never repeats."""
    sent: list[list[bytes]] = []
    for name in ("one", "two"):
        experiment = small("fedavg", name, rounds=2, models=("mlp",), settings=NOISY)
        run_on_sites(experiment, tmp_path / name, change=lambda transport: sent.append(sent_payloads(transport)))
    assert len(sent[0]) == len(sent[1]) == 2
    for one, two in zip(*sent, strict=True):
        first, second = (Payload.from_bytes(raw) for raw in (one, two))
        assert all(not torch.equal(first[name], second[name]) for name in first)


def test_a_message_that_comes_twice_gets_the_stored_reply(small: Callable[..., Experiment], tmp_path: Path) -> None:
    replies: list[tuple[bytes, bytes]] = []

    def twice(transport: InProcessTransport) -> None:
        handle = transport.workers[0].handle

        def ask_twice(text: str, blobs: list[bytes]) -> Envelope:
            first, second = handle(text, blobs), handle(text, blobs)
            replies.extend(zip(first.blobs, second.blobs, strict=True))
            return second

        transport.workers[0].handle = ask_twice  # type: ignore[method-assign]

    experiment = small("fedavg", rounds=2, models=("mlp",), settings=NOISY)
    result, transport = run_on_sites(experiment, tmp_path / "sites", change=twice)
    assert replies
    assert all(first == second for first, second in replies)
    budget = tmp_path / "sites" / result.clients[0]["name"] / "privacy-budget.jsonl"
    assert len(budget.read_text().splitlines()) == 2  # paid once per round
    assert transport.workers[0].folder == budget.parent


def test_a_site_stops_at_its_own_budget(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """The server asks for three rounds; site 0 takes part until its ε is used up, and remembers it in the next run."""
    experiment = small("fedavg", rounds=3, models=("mlp",), settings=NOISY)
    probe = Settings(**NOISY)
    limit = epsilon(probe.dp_noise, 16 / 48, 3, probe.dp_delta) * 1.05  # one round

    def limited(transport: InProcessTransport) -> None:
        transport.workers[0].policy = Policy(trust_server=True, metrics=True, max_epsilon=limit)

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=limited)
    name = transport.workers[0].site.name
    reasons = [out for event in events(experiment) for out in event["left_out"]]
    assert {out["client"] for out in reasons} == {name}
    assert all("this site's budget is" in out["why"] for out in reasons)
    again = small("fedavg", "again", rounds=1, seed=1, models=("mlp",), settings=NOISY)
    with pytest.raises(QuorumError, match=f"{name}: refused: this release would raise ε .* this site's budget is"):
        # another server, the same site: nothing is left
        run_on_sites(again.model_copy(update={"quorum": 1.0}), tmp_path / "sites", run="f" * 16, change=limited)


@pytest.mark.parametrize("name", [name for name, cls in methods.registry().items() if cls.supports_dp])
def test_the_server_reports_the_epsilon_that_the_sites_have_recorded(
    name: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The server computes it from the method, and a site from the steps that it has made."""
    total = {"epochs": 5} if name == "solo" else {}
    settings = {**NOISY, "pretrain_epochs": 2, **total}
    experiment = small(name, rounds=2, models=("mlp",), settings=settings)
    _, transport = run_on_sites(experiment, tmp_path / "sites")
    reported = events(experiment)[-1]["privacy"]["epsilon"]
    for worker in transport.workers:
        ledger = PrivacyBudget(worker.folder / "privacy-budget.jsonl", delta=1e-5)
        assert ledger.epsilon() == pytest.approx(reported[worker.site.name], rel=1e-9)
        assert sum(release.steps for release in ledger.releases()) == 3 * (2 + total.get("epochs", 2))


def test_a_site_refuses_a_release_of_samples_that_are_scaled_by_their_own_statistics(tmp_path: Path) -> None:
    def rescale(transport: InProcessTransport) -> None:
        for worker in transport.workers:
            data = vars(worker.site)["_data"]
            train = replace(data.train, encoding=Encoding(scaling="own"))
            object.__setattr__(worker.site, "_data", replace(data, train=train))

    settings = {"release_noise": 1.0, "scaling": "agreed", "condense_steps": 1}
    experiment = Experiment(method="choir", scenario="heart", rounds=1, settings=settings, out=tmp_path / "out")
    assert "refused: release_noise is not possible for table" in fails_with(rescale, experiment, tmp_path / "sites")
    assert not list((tmp_path / "sites").rglob("privacy-budget.jsonl"))


def test_a_noised_set_is_in_the_ledger_and_its_noise_is_no_function_of_the_seed(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The server computes ε of one release; the sites draw noise from the operating system and record one release."""
    experiment = small("choir", rounds=2, settings={"release_noise": 1.0})
    _, transport = run_on_sites(experiment, tmp_path / "sites")
    reported = events(experiment)[-1]["privacy"]["epsilon"]
    for worker in transport.workers:
        ledger = PrivacyBudget(worker.folder / "privacy-budget.jsonl", delta=1e-5)
        assert ledger.releases() == [Release(1.0, 1.0, 1)]
        assert ledger.epsilon() == pytest.approx(reported[worker.site.name], rel=1e-9)

    def limited(transport: InProcessTransport) -> None:
        transport.workers[0].policy = Policy(trust_server=True, max_epsilon=4.0)  # one release costs 4.4

    again = small("choir", "again", rounds=1, settings={"release_noise": 1.0})
    run_on_sites(again, tmp_path / "again", change=limited)
    refused = [out for out in events(again)[0]["left_out"] if out["exchange"] == "share_condensed"]
    assert [out["client"] for out in refused] == [transport.workers[0].site.name]
    assert "this site's budget is 4" in refused[0]["why"]
    simulated = small("choir", "simulated", rounds=2, settings={"release_noise": 1.0})
    run(simulated)
    assert not torch.equal(*(states(each)["server"]["set1/condensed"] for each in (experiment, simulated)))
