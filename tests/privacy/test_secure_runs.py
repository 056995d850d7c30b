"""Whole runs with secure sums: the same numbers up to 1e-4, sites that come and go, refusals up front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from tests.deploy.in_process import InProcessTransport, run_on_sites, stop_before
from tests.helpers import Stop, events, numbers
from tests.privacy.test_secure_sum import assert_uniform

from fedchoir import Experiment, methods, run
from fedchoir.deploy.config import read_federation
from fedchoir.engines.messages import Envelope
from fedchoir.privacy.secure_aggregation.client import MASKED
from fedchoir.utils.errors import UsageError

EACH = {"fedct", "fedexg", "fedfoa", "fedmatch", "pgct", "rhfl"}
"""Methods whose server needs single payloads."""
results = partial(numbers, only=("round", "accuracy", "losses", "measures", "left_out"))


@pytest.mark.parametrize("name", list(methods.registry()))
def test_every_method_runs_on_sums_or_says_why_not(name: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    if name in EACH:
        with pytest.raises(UsageError, match=f"secure = true is not possible with {name}: ") as error:
            run(small(name, rounds=1, secure=True))
        assert "\n" not in str(error.value)
        return
    run(small(name, "plain", rounds=2))
    run(small(name, "secure", rounds=2, secure=True))
    for one, two in zip(results(tmp_path / "plain"), results(tmp_path / "secure"), strict=True):
        assert two["left_out"] == []
        for client, losses in one["losses"].items():
            for what, value in losses.items():
                assert two["losses"][client][what] == pytest.approx(value, rel=0.02, abs=0.02), (client, what)


@pytest.mark.parametrize(("name", "secure"), [("fccl+", True), ("fedavg", "strict"), ("fedproc", True)])
def test_sites_hide_their_answers_and_the_numbers_are_the_local_ones(
    name: str, secure: bool | str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Sums are whole numbers, so they are the same on both engines to the last bit, whatever the masks."""
    changes = {"rounds": 2, "secure": secure, "settings": {"sync": "epoch"}}
    run(small(name, "local", **changes))
    seen: list[Envelope] = []

    def listen(transport: InProcessTransport) -> None:
        deliver = transport.deliver

        def overheard(letters: Mapping[int, Envelope], within: float = 0.0) -> Iterator[tuple[int, Envelope | str]]:
            for k, answer in deliver(letters):
                assert isinstance(answer, Envelope)
                seen.append(answer)
                yield k, answer

        transport.deliver = overheard  # type: ignore[method-assign]

    flower = small(name, "flower", **changes)
    result, transport = run_on_sites(flower, tmp_path / "sites", change=listen)
    assert results(tmp_path / "local") == results(tmp_path / "flower")
    assert result.messages == len(transport.sent)
    if name == "fccl+":
        # one a client and round, and the end of the last round; and two at the start for the keys
        assert len(transport.sent) == 2 * 3 + 3 + 2 * 3
    parts = [letter.get(number) for letter in seen for number in letter.header.get("parts", [])]
    assert parts
    assert all(set(part) == {MASKED} and not part.scalars for part in parts)
    assert_uniform(torch.cat([part[MASKED] for part in parts]).numpy().view(np.uint32))


def test_a_site_that_is_away_and_comes_back(small: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = small("fccl+", rounds=4, secure=True, settings={"sync": "epoch"})

    def trouble(transport: InProcessTransport) -> None:
        def fails(client: int, header: dict[str, Any]) -> str:
            rounds = [item["round"] for item in header.get("work", [])]
            return "the scanner is on fire" if client == 1 and rounds and max(rounds) == 1 else ""

        transport.fail = fails

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=trouble)
    assert [[out["why"] for out in event["left_out"]] for event in events(experiment)] == [
        [],
        ["the scanner is on fire"],
        [],
        [],
    ]
    asked = [(h["client"], h["key_request"]["kind"]) for h in transport.sent if "key_request" in h]
    assert sorted(asked[6:8]) == [(0, "unmasking_shares"), (2, "unmasking_shares")]
    assert asked[8] == (1, "encryption_key")  # it may have lost its keys, so it is asked for all of them


def test_a_site_that_comes_late_makes_everyone_offer_keys_anew(
    small: Callable[..., Experiment], shapes: Path, tmp_path: Path
) -> None:
    """With four sites three are enough to begin; shares are then made for four."""
    folder = tmp_path / "four"
    folder.mkdir()
    for name, source in (("a", "red"), ("b", "green"), ("c", "white"), ("d", "red")):
        (folder / f"{name}.npz").write_bytes((shapes / f"{source}.npz").read_bytes())
    experiment = small("fedmd", rounds=3, secure=True, scenario=str(folder), settings={"sync": "epoch"})
    late: dict[str, int] = {"rounds": 0}

    def trouble(transport: InProcessTransport) -> None:
        def fails(client: int, header: dict[str, Any]) -> str:
            late["rounds"] = max([late["rounds"], *(item["round"] for item in header.get("work", []))])
            return "not connected" if client == 3 and late["rounds"] < 1 else ""

        transport.fail = fails

    _, transport = run_on_sites(experiment, tmp_path / "sites", change=trouble)
    outs = [{out["client"]: out["why"] for out in event["left_out"]} for event in results(tmp_path / "run")]
    assert outs == [{"d": "not connected"}, {"d": "not connected"}, {}]
    offered = [
        header["client"] for header in transport.sent if header.get("key_request", {}).get("kind") == "key_shares"
    ]
    assert sorted(offered) == [0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("when", [9, 13, 15])
def test_a_server_that_dies_goes_on_to_the_same_numbers(
    when: int, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    changes = {"secure": True, "settings": {"sync": "epoch"}}
    run(small("fccl+", "straight", **changes))
    broken = small("fccl+", "broken", **changes)

    with pytest.raises(Stop):
        run_on_sites(broken, tmp_path / "sites", change=stop_before(when))
    run_on_sites(broken, tmp_path / "sites", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "straight")


def test_numbers_that_are_not_finite_leave_nobody_else_out(small: Callable[..., Experiment], tmp_path: Path) -> None:
    settings = {"attack": "nan", "attackers": 1}
    result = run(small("fedmd", rounds=1, secure=True, settings=settings))
    (event,) = results(tmp_path / "run")
    assert {out["client"] for out in event["left_out"]} == {result.clients[-1]["name"]}
    assert "only finite numbers" in event["left_out"][0]["why"]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "fedmatch"}, "fedmatch: it compares clients' answers"),
        ({"settings": {"robust": "median"}}, "fedmd: robust = 'median' compares single answers"),
        ({"settings": {"fraction": 0.5}}, "fedmd: fraction = 0.5"),
        ({"sites": 2}, "fedmd: 2 clients are too few"),
        (
            {"settings": {"centralized": True}},
            "pooled is not possible in a federation: its sites bring data of their own",
        ),
        ({"settings": {"private": [10]}}, "private is not possible in a federation"),
        ({"secure": "yes please"}, "secure = 'yes please'"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused_before_anyone_comes(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    sites = [{"name": n, "key": f"{n}.pub"} for n in "abc"[: changes.pop("sites", 3)]]
    message = {"method": "fedmd", "public": "photos", "secure": True, "sites": sites, **changes}
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(message))
    with pytest.raises(UsageError) as error:
        read_federation(path).plan()
    assert why in str(error.value)
    assert "\n" not in str(error.value)
