"""Secure sums between sites: the same numbers as in a simulation, sites that come and go, early refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from tests import helpers
from tests.deploy.in_process import InProcessTransport, run_on_sites, stop_before
from tests.helpers import Stop, assert_uniform, events

from fedchoir import Experiment, run
from fedchoir.core.secure_exchange import SecureExchange
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.config import read_federation
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.received import received_digest
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.messages import MASKED
from fedchoir.utils.errors import QuorumError, UsageError

numbers = partial(helpers.numbers, only=("round", "accuracy", "losses", "measures", "left_out"))
SECURE = {"secure": True, "settings": {"sync": "epoch"}}


@pytest.mark.parametrize(("name", "secure"), [("fccl+", True), ("fedavg", "strict"), ("fedproc", True)])
def test_sites_send_masked_payloads_and_the_numbers_are_those_of_a_simulation(
    name: str, secure: bool | str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Sums are integers, so both engines agree to the last bit, whatever the masks."""
    changes = {"rounds": 2, "secure": secure, "settings": {"sync": "epoch"}}
    local, flower = small(name, "local", **changes), small(name, "flower", **changes)
    run(local)
    replies: list[Envelope] = []

    def record(transport: InProcessTransport) -> None:
        deliver = transport.deliver

        def recorded(envelopes: Mapping[int, Envelope], within: float = 0.0) -> Iterator[tuple[int, Envelope | str]]:
            for k, reply in deliver(envelopes):
                assert isinstance(reply, Envelope)
                replies.append(reply)
                yield k, reply

        transport.deliver = recorded  # type: ignore[method-assign]

    result, transport = run_on_sites(flower, tmp_path / "sites", change=record)
    assert numbers(local) == numbers(flower)
    assert result.messages == len(transport.sent)
    if name == "fccl+":
        # one per client and round, one for the end of the last round, and two at the start for the keys
        assert len(transport.sent) == 2 * 3 + 3 + 2 * 3
    payloads = [reply.get(number) for reply in replies for number in reply.header.get("payloads", [])]
    assert payloads
    assert all(set(payload) == {MASKED} and not payload.scalars for payload in payloads)
    assert_uniform(torch.cat([payload[MASKED] for payload in payloads]).numpy().view(np.uint32))


def key_requests(transport: InProcessTransport) -> list[tuple[int, str]]:
    return [(h["client"], h["key_request"]["kind"]) for h in transport.sent if "key_request" in h]


@pytest.fixture
def four(shapes: Path, tmp_path: Path) -> str:
    """A scenario of four sites: one may drop out of a secure sum."""
    folder = tmp_path / "four"
    folder.mkdir()
    for name, source in (("a", "red"), ("b", "green"), ("c", "white"), ("d", "red")):
        (folder / f"{name}.npz").write_bytes((shapes / f"{source}.npz").read_bytes())
    return str(folder)


def test_a_site_that_failed_once_is_asked_for_its_keys_again(
    small: Callable[..., Experiment], four: str, tmp_path: Path
) -> None:
    experiment = small("fccl+", rounds=4, scenario=four, **SECURE)

    def break_round_1(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            rounds = [item["round"] for item in header.get("work", [])]
            return "the scanner is on fire" if client == 1 and rounds and max(rounds) == 1 else ""

        transport.fail = fail

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=break_round_1)
    reasons = [[out["why"] for out in event["left_out"]] for event in events(experiment)]
    assert reasons == [[], ["the scanner is on fire"], [], []]
    requests = key_requests(transport)
    for first, kind in ((8, "senders"), (11, "unmasking_shares")):
        assert sorted(requests[first : first + 3]) == [(0, kind), (2, kind), (3, kind)]
    assert requests[14] == (1, "encryption_key")  # it may have lost its keys


def test_a_site_that_joins_late_makes_everyone_share_keys_again(
    small: Callable[..., Experiment], four: str, tmp_path: Path
) -> None:
    """Three of four sites are enough to begin; afterwards the keys are shared among four."""
    experiment = small("fedmd", rounds=3, scenario=four, **SECURE)
    latest = 0

    def disconnect(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            nonlocal latest
            latest = max([latest, *(item["round"] for item in header.get("work", []))])
            return "not connected" if client == 3 and latest < 1 else ""

        transport.fail = fail

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=disconnect)
    left_out = [{out["client"]: out["why"] for out in event["left_out"]} for event in events(experiment)]
    assert left_out == [{"d": "not connected"}, {"d": "not connected"}, {}]
    assert sorted(client for client, kind in key_requests(transport) if kind == "key_shares") == [0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("message", [9, 13, 15])
def test_a_stopped_server_resumes_to_the_same_numbers(
    message: int, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    straight, stopped = small("fccl+", "straight", **SECURE), small("fccl+", "stopped", **SECURE)
    run(straight)
    with pytest.raises(Stop):
        run_on_sites(stopped, tmp_path / "sites", change=stop_before(message))
    run_on_sites(stopped, tmp_path / "sites", resume=True)
    assert numbers(stopped) == numbers(straight)


def test_sites_that_require_secure_aggregation_take_part_in_it(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    policy = Policy(trust_server=True, secure=True)
    result, _ = run_on_sites(small("fedmd", rounds=1, **SECURE), tmp_path / "sites", policy=policy)
    assert result.rounds == 1


def altered(change: Callable[[int, dict[str, Any]], None]) -> Callable[[InProcessTransport], None]:
    """A server that changes the headers of its messages about work; ``change`` gets the client and the header."""
    return altered_content(lambda k, header, blobs: change(k, header))


def test_a_site_refuses_a_size_that_is_not_its_own(small: Callable[..., Experiment], four: str, tmp_path: Path) -> None:
    """The server tells everyone that site a has most of the images: the mean would be its weights."""

    def change(k: int, header: dict[str, Any]) -> None:
        for client in header["plan"]["task"]["clients"][1:]:
            client["train"] = 1

    with pytest.raises(QuorumError) as error:
        run_on_sites(small("fedavg", scenario=four, secure="strict"), tmp_path / "sites", change=altered(change))
    for site in "bcd":
        assert re.search(rf"{site}: refused: this site has \d+ samples, and the server gives 1", str(error.value))


def test_a_site_that_alone_is_told_other_sizes_refuses_to_be_the_mean(
    small: Callable[..., Experiment], four: str, tmp_path: Path
) -> None:
    def change(k: int, header: dict[str, Any]) -> None:
        for client in header["plan"]["task"]["clients"][1:] if k == 0 else ():
            client["train"] = 1

    experiment = small("fedavg", rounds=1, scenario=four, secure="strict")
    run_on_sites(experiment, tmp_path / "sites", change=altered(change))
    ((out,),) = [event["left_out"] for event in events(experiment)]
    assert out["client"] == "a"
    assert "a would be 9" in out["why"]
    assert "of the mean, and 80% is allowed" in out["why"]


@pytest.mark.parametrize("secure", [True, "strict"])
def test_a_site_that_goes_back_to_an_earlier_state_remembers_who_was_in_a_sum(
    secure: bool | str, small: Callable[..., Experiment], four: str, tmp_path: Path
) -> None:
    """The server starts the run again from its first state, without site d: the difference would be d's payload."""
    options = {**SECURE, "secure": secure, "rounds": 1, "scenario": four}
    run_on_sites(small("fedmd", "first", **options), tmp_path / "sites")

    def disconnect(transport: InProcessTransport) -> None:
        transport.fail = lambda client, header: "not connected" if client == 3 else ""

    with pytest.raises(QuorumError, match=r"exchange 1 of round 1 was summed over the clients \[0, 1, 2, 3\] before"):
        run_on_sites(small("fedmd", "second", **options), tmp_path / "sites", change=disconnect)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "fedmatch"}, "fedmatch: it compares"),
        ({"settings": {"robust": "median"}}, "fedmd: robust = 'median' compares"),
        ({"settings": {"fraction": 0.5}}, "fedmd: fraction = 0.5"),
        ({"sites": 2}, "fedmd: 2 clients are too few"),
        ({"settings": {"centralized": True}}, "centralized is not possible in a federation"),
        ({"settings": {"private": [10]}}, "private is not possible in a federation"),
        ({"secure": "yes please"}, "secure = 'yes please'"),
    ],
)
def test_an_impossible_federation_is_refused_before_any_site_connects(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    changes = dict(changes)
    sites = [{"name": n, "key": f"{n}.pub"} for n in "abc"[: changes.pop("sites", 3)]]
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps({"method": "fedmd", "public": "photos", "secure": True, "sites": sites, **changes}))
    with pytest.raises(UsageError) as error:
        read_federation(path).plan()
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_strict_sum_is_refused_where_sites_received_different_aggregates(
    small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The server sends two sites dead weights: what they send back is known, so the sum would be the third site's."""

    def tamper(k: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        if k > 0:
            kill_downloads(header, blobs)

    experiment = small("fedavg", rounds=2, models=("mlp",), secure="strict")
    with pytest.raises(QuorumError, match="the other sites of this sum received something else from the server"):
        run_on_sites(experiment, tmp_path / "sites", change=altered_content(tamper))


def test_a_server_that_hides_its_different_aggregates_gets_no_sum(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells every site that the others received the same. Masks of sites that were told otherwise do not cancel."""
    means: list[Any] = []
    compute = SecureExchange._mean
    monkeypatch.setattr(SecureExchange, "_mean", lambda *args: means.append(compute(*args)) or means[-1])
    seen = dict.fromkeys(range(3), "")

    def tamper(k: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        if k > 0:
            kill_downloads(header, blobs)
        seen[k] = received_digest(seen[k], Envelope(header, blobs))
        if "masking" in header:
            header["masking"]["received"] = seen[k]

    experiment = small("fedavg", rounds=2, models=("mlp",), secure="strict")
    with pytest.raises(QuorumError, match="the masks did not cancel"):
        run_on_sites(experiment, tmp_path / "sites", change=altered_content(tamper))
    assert len(means) == 1  # that of the first round, before anyone had received anything


def kill_downloads(header: dict[str, Any], blobs: list[bytes]) -> None:
    """Replace the global weights by zeros."""
    for item in header["work"]:
        if item.get("name") == "download":
            weights = Payload.from_bytes(blobs[item["received"]])
            blobs[item["received"]] = Payload({n: torch.zeros_like(t) for n, t in weights.items()}).to_bytes()


def altered_content(change: Callable[[int, dict[str, Any], list[bytes]], None]) -> Callable[[InProcessTransport], None]:
    """A server that changes headers and contents of its messages about work."""

    def alter(transport: InProcessTransport) -> None:
        for k, worker in enumerate(transport.workers):

            def handle(text: str, blobs: list[bytes], k: int = k, worker: ClientWorker = worker) -> Envelope:
                header, changed = json.loads(text), list(blobs)
                if "work" in header:
                    change(k, header, changed)
                return worker.handle(json.dumps(header), changed)

            transport.workers[k] = replace(worker)
            transport.workers[k].handle = handle  # type: ignore[method-assign]

    return alter
