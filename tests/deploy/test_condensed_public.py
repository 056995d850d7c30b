"""A federation of sites whose public set is made of their condensed samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from tests import helpers
from tests.deploy.in_process import RUN, InProcessTransport, run_on_sites, stop_before
from tests.deploy.test_inspection import federation as three_sites
from tests.deploy.test_leakage import SYNTHETIC
from tests.deploy.test_leakage import federation as two_sites
from tests.deploy.test_leakage import site as site  # a fixture
from tests.helpers import Stop, events

from fedchoir import Experiment
from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.inspection import describe_federation, open_method
from fedchoir.deploy.leakage import attack_synthetic, rehearse
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.run_folder import RunFolder
from fedchoir.deploy.server import site_info_request
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.headers import InfoHeader
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.methods.condensed_public import CondensedPublic
from fedchoir.utils.errors import QuorumError, UsageError

NAME = "fedmd on condensed samples"
FORBIDDEN = (
    "refused: fedmd sends synthetic samples that are condensed from private ones, which this site's policy does not "
    "allow (synthetic = false)"
)
numbers = partial(helpers.numbers, without=("seconds", "messages"))


def file(**changes: Any) -> FederationFile:
    sites = [{"name": name, "model": "mlp", "key": f"{name}.pub"} for name in "abc"]
    values = {"method": "fedmd", "public": "condensed", "sites": sites, "settings": {"per_class": 4}, **changes}
    return FederationFile.model_validate(values)


def stored(transport: InProcessTransport, site: int) -> torch.Tensor:
    """The public set in a site's last state."""
    run = RunFolder(transport.workers[site].folder / RUN)
    last = max(int(path.stem.partition("-")[2]) for path in run.path.glob("state-*"))
    return run.load_state(last)[0]["memory/public_samples"]


# -- the agreed file and the site's policy -----------------------------------------------------------------------------


def test_a_file_names_it_like_any_public_set() -> None:
    plan = file().plan()
    assert plan.public == "condensed"
    assert plan.params.model_dump()["per_class"] == 4
    with pytest.raises(UsageError, match="there is no option 'per_class'"):
        file(public="photos").plan()
    with pytest.raises(UsageError, match="its server forwards each client's synthetic samples"):
        file(secure=True).plan()


def test_a_site_that_allows_no_synthetic_samples_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(file().model_dump(mode="json", exclude_none=True)))
    Policy(federation=path).check()
    with pytest.raises(UsageError, match=r"\(synthetic = false\)"):
        Policy(federation=path, synthetic=False).check()
    request = InfoHeader(**site_info_request(file().plan()))
    Policy(trust_server=True).accept(request)
    with pytest.raises(MessageError) as refused:
        Policy(trust_server=True, synthetic=False).accept(request)
    assert str(refused.value) == FORBIDDEN
    other = InfoHeader(**site_info_request(file(public="photos", settings={}).plan()))
    Policy(trust_server=True, synthetic=False).accept(other)


def test_a_server_that_names_it_against_the_agreed_file_is_refused() -> None:
    agreement = Agreement.of(file(public="photos", settings={}))
    asked = InfoHeader(
        **{**site_info_request(file(public="photos", settings={}).plan()), "public": {"name": "condensed"}}
    )
    with pytest.raises(MessageError, match="the server names another public set than the agreed file"):
        agreement.check_request(asked)


def test_a_site_needs_no_copy_of_it(site: LocalSite) -> None:
    params = file(settings={"image_size": 16}).plan().params
    assert site.site_info(params, {"name": "condensed", "size": 48})["public"] is None


# -- runs --------------------------------------------------------------------------------------------------------------


def test_sites_have_one_set_and_a_stopped_run_resumes_exactly(small: Callable[..., Experiment], tmp_path: Path) -> None:
    straight, stopped = small(NAME, "straight", rounds=2), small(NAME, "stopped", rounds=2)
    _, transport = run_on_sites(straight, tmp_path / "one")
    assert stored(transport, 0).shape == (48, 3, 16, 16)
    assert all(torch.equal(stored(transport, k), stored(transport, 0)) for k in range(3))
    with pytest.raises(Stop):
        run_on_sites(stopped, tmp_path / "two", change=stop_before(14))
    run_on_sites(stopped, tmp_path / "two", resume=True)
    assert numbers(straight) == numbers(stopped)


def test_the_run_goes_on_without_a_site_that_refuses(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def strict(transport: InProcessTransport) -> None:
        transport.workers[0].policy = Policy(trust_server=True, synthetic=False)

    experiment = small(NAME, rounds=1)
    _, transport = run_on_sites(experiment, tmp_path / "sites", change=strict)
    left_out = events(experiment)[0]["left_out"]
    assert {(out["client"], out["why"]) for out in left_out} == {(transport.workers[0].site.name, FORBIDDEN)}
    one, two = stored(transport, 1), stored(transport, 2)
    assert torch.equal(one, two)
    assert torch.equal(one[32:], one[:16])  # the places of the third site
    assert not list(transport.workers[0].folder.rglob("state-*"))


def test_a_site_that_connects_later_gets_the_set(small: Callable[..., Experiment], tmp_path: Path) -> None:
    def absent(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            return "not connected" if client == 2 and header["work"][-1]["round"] == 0 else ""

        transport.fail = fail

    experiment = small(NAME, rounds=3)
    _, transport = run_on_sites(experiment, tmp_path / "sites", change=absent)
    assert torch.equal(stored(transport, 2), stored(transport, 0))
    assert [bool(event["left_out"]) for event in events(experiment)] == [True, False, False]


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda samples: samples[:47], "a public set of 48 condensed samples was expected"),
        (lambda samples: samples.float(), "do not fit image 3×16×16"),
        (lambda samples: samples[..., :8], "do not fit image 3×16×16"),
    ],
)
def test_a_tampered_set_is_refused(
    tamper: Callable[[torch.Tensor], torch.Tensor],
    why: str,
    small: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = CondensedPublic.joined_public
    monkeypatch.setattr(CondensedPublic, "joined_public", lambda self: tamper(honest(self)))
    with pytest.raises(QuorumError, match=why):
        run_on_sites(small(NAME, rounds=1), tmp_path / "sites")


def altered(change: Callable[[dict[str, Any]], None]) -> Callable[[InProcessTransport], None]:
    """A server that changes the headers of its messages."""

    def attack(transport: InProcessTransport) -> None:
        for worker in transport.workers:
            handle = worker.handle

            def receive(text: str, blobs: list[bytes], handle: Any = handle) -> Envelope:
                header = json.loads(text)
                change(header)
                return handle(json.dumps(header), blobs)  # type: ignore[no-any-return]

            worker.handle = receive  # type: ignore[method-assign]

    return attack


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda header: header["plan"]["task"].update(public_size=47), "gives 47 public samples, and this site has 40"),
        (lambda header: header["plan"]["public"].update(digest="0" * 64), "its digest differs"),
        (lambda header: header["plan"].update(public=None), "there is no option"),  # of the method without condensation
    ],
)
def test_other_sizes_and_sets_are_refused(
    change: Callable[[dict[str, Any]], None], why: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    with pytest.raises(QuorumError, match=why):
        run_on_sites(small(NAME, rounds=1), tmp_path / "sites", change=altered(change))


def test_a_site_that_requires_another_public_set_refuses_it(small: Callable[..., Experiment], tmp_path: Path) -> None:
    policy = Policy(trust_server=True, public_sha256="0" * 64)
    with pytest.raises(QuorumError, match="the public set at this site is not the one of its policy"):
        run_on_sites(small(NAME, rounds=1), tmp_path / "sites", policy=policy)


# -- before a site joins -----------------------------------------------------------------------------------------------


def test_what_is_sent_is_described() -> None:
    planned = three_sites(method="fedmd", public="condensed", settings={"image_size": 16, "per_class": 2})
    text = "\n".join(describe_federation(planned, open_method(planned, "mlp")))
    assert "share_condensed: condensed, 10×2×3×16×16, 15.0 KiB (synthetic samples)" in text
    assert "share: logits, 60×10, 2.3 KiB (public outputs)" in text
    assert "its server forwards each client's synthetic samples" in text


def test_its_samples_are_attacked_before_they_are_sent(site: LocalSite) -> None:
    planned = two_sites("fedmd", models=("mlp", "simple_cnn@4"), **SYNTHETIC, public_size=16)
    rehearsal = rehearse(planned.model_copy(update={"public": "condensed"}), site, epochs=1)
    assert rehearsal.released
    found = attack_synthetic(rehearsal)
    assert found is not None
    assert found.distance > 0.5
