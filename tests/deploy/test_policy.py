"""A site's policy: what it reads, what it refuses, and how the command line changes it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedchoir.core.settings import Settings
from fedchoir.deploy.policy import Limit, Policy, sha256_of
from fedchoir.deploy.policy_file import policy_text, read_policy
from fedchoir.engines.headers import InfoHeader
from fedchoir.engines.messages import MessageError
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml


def write_federation(folder: Path, **changes: Any) -> Path:
    sites = [{"name": n, "key": f"{n}.pub"} for n in "abc"]
    path = folder / "federation.toml"
    fields = {"method": "fedmd", "public": "photos", "rounds": 2, "sites": sites, "settings": {"local_epochs": 3}}
    path.write_text(tomli_w.dumps({**fields, **changes}))
    return path


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"methods": ["fedmt"]}, "it should be methods that exist (fedchoir list methods), and 'fedmt' does not"),
        ({"hours": "25:00-26:00"}, "hours = '25:00-26:00' is not possible: it should be two times, as in 22:00-06:00"),
        ({"metrics": "sometimes"}, "metrics = 'sometimes' is not possible"),
        ({"federation_sha256": "abc"}, "federation_sha256 = 'abc' is not possible"),
        ({"settings": {"local_epochs": {"most": 3}}}, "there is no option 'most'"),
        ({"max_epsilon": -1}, "max_epsilon = -1 is not possible"),
        ({"secure": "very"}, "secure = 'very' is not possible"),
        ({"max_runs": 0}, "max_runs = 0 is not possible"),
        ({"max_runs": "many"}, "max_runs = 'many' is not possible"),
        ({"max_epsilonn": 8}, "there is no option 'max_epsilonn'; did you mean max_epsilon"),
    ],
)
def test_a_bad_field_is_named_in_one_line(values: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(tomli_w.dumps(values))
    with pytest.raises(UsageError) as error:
        read_policy(path)
    assert why in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("limit", "allowed", "refused", "text"),
    [
        ({"min": 1, "max": 20}, [1, 20, (3, 4)], [0, 21, (3, 40), "x", None], "at least 1 and at most 20"),
        (["epoch", "batch"], ["epoch"], ["none"], "'epoch' or 'batch'"),
        (1.5, [1.5], [1.4], "1.5"),
        ({"min": 0.5}, [0.5, 9], [0.4], "at least 0.5"),
    ],
)
def test_limits_of_settings(limit: Any, allowed: list[Any], refused: list[Any], text: str) -> None:
    made = Policy(settings={"x": limit}).settings["x"]
    assert isinstance(made, Limit)
    assert all(map(made.allows, allowed))
    assert not any(map(made.allows, refused))
    assert str(made) == text


@pytest.mark.parametrize(
    ("values", "changes", "why"),
    [
        ({"methods": ["fccl+"]}, {}, "method 'fedmd'; this site allows fccl+"),
        ({"settings": {"local_epochs": {"max": 2}}}, {}, "local_epochs = 3; this site allows at most 2"),
        ({"min_sites": 4}, {}, "3 sites; this site takes part with at least 4"),
        ({"max_epsilon": 8}, {}, "dp_noise = 0; this site has a privacy budget"),
        ({"secure": True}, {}, "secure = False, and this site wants True"),
        ({"secure": "strict"}, {"secure": True}, "secure = True, and this site wants 'strict'"),
        ({"federation_sha256": "0" * 64}, {}, "has changed since it was agreed to"),
    ],
)
def test_an_agreed_file_that_the_policy_forbids_stops_the_node(
    values: dict[str, Any], changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = write_federation(tmp_path, **changes)
    Policy(federation=path).check()
    with pytest.raises(UsageError) as error:
        Policy(federation=path, **values).check()
    assert why in str(error.value)


def test_method_and_settings_come_from_the_agreed_file(tmp_path: Path) -> None:
    policy = Policy(federation=write_federation(tmp_path))
    agreement = policy.agreement
    assert agreement is not None
    honest = InfoHeader(method="fedmd", settings=dict(agreement.settings), public=dict(agreement.public or {}))
    method, params = policy.accept(honest)
    assert (method.name, params.local_epochs) == ("fedmd", 3)
    with pytest.raises(MessageError, match="asks for 'fedavg', and the agreed file has 'fedmd'"):
        policy.accept(honest.model_copy(update={"method": "fedavg"}))
    assert "fedmd, 2 rounds with a, b, c; no secure sums; anything else is refused" in policy.describe("red")


def test_without_an_agreed_file_only_a_site_that_trusts_its_server_does_anything() -> None:
    request = InfoHeader(method="fedmd", settings={}, public=None)
    with pytest.raises(MessageError, match="this site has agreed to no federation"):
        Policy().accept(request)
    trusting = Policy(trust_server=True)
    assert trusting.accept(request).method.name == "fedmd"
    assert "TRUSTS ITS SERVER" in trusting.describe("red")
    for settings, why in (
        ({"tokenizer": "/etc/passwd"}, "tokenizer names a file, and only this site's operator does that"),
        ({"local_epochs": -1}, "refused: local_epochs"),
        ({"nonsense": 1}, "there is no option 'nonsense'"),
    ):
        with pytest.raises(MessageError, match=why):
            trusting.accept(request.model_copy(update={"settings": settings}))
    with pytest.raises(MessageError, match="refused: "):
        trusting.accept(request.model_copy(update={"method": "nonsense"}))


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [("08:00-17:30", ["08:00", "17:29"], ["07:59", "17:30"]), ("22:00-06:00", ["23:00", "05:59"], ["06:00", "21:59"])],
)
def test_hours_of_work(hours: str, inside: list[str], outside: list[str]) -> None:
    policy = Policy(hours=hours)
    for text in inside:
        policy.check_hours(datetime.time.fromisoformat(text))
    for text in outside:
        with pytest.raises(MessageError, match="refused: this site works from"):
            policy.check_hours(datetime.time.fromisoformat(text))


def test_losses_and_accuracies_leave_only_where_nothing_is_protected() -> None:
    plain, noisy = Settings(), Settings(dp_noise=1.0)
    auto = Policy(trust_server=True)
    assert auto.metrics_leave(plain, secure=False)
    assert not auto.metrics_leave(noisy, secure=False)
    assert not auto.metrics_leave(plain, secure=True)
    assert not Policy(secure=True).metrics_leave(plain, secure=False)
    assert Policy(metrics=True).metrics_leave(noisy, secure=True)
    assert not Policy(metrics=False).metrics_leave(plain, secure=False)


def test_the_command_line_wins_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    federation = write_federation(folder)
    (folder / "public.npz").touch()
    given = {"federation": "federation.toml", "federation_sha256": sha256_of(federation), "public": "public.npz"}
    (folder / "policy.toml").write_text(policy_text(**given, max_epsilon=8.0))
    policy = read_policy(folder / "policy.toml")
    assert (policy.federation, policy.public) == (federation, str(folder / "public.npz"))
    assert policy.max_epsilon == 8.0
    changed = read_policy(folder / "policy.toml", max_epsilon=2.0, federation=Path("other.toml"))
    assert (changed.max_epsilon, changed.federation, changed.federation_sha256) == (2.0, Path("other.toml"), None)
    assert read_policy(None, trust_server=True) == Policy(trust_server=True)


def test_a_written_policy_describes_every_field_and_is_read_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {"trust_server": True, "hours": "22:00-06:00", "secure": "strict", "methods": ["fedmd"]}
    path = tmp_path / "policy.toml"
    path.write_text(policy_text(**values))
    assert read_toml(path) == values
    assert all(f"{name} = " in path.read_text() for name in Policy.model_fields)
    commented = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ") and " = " in line]
    path.write_text("\n".join(line for line in commented if "…" not in line))
    read_policy(path)  # the examples in the comments are valid


@pytest.mark.parametrize("method", ["choir", "feddm"])
def test_a_site_can_forbid_synthetic_samples(method: str, tmp_path: Path) -> None:
    path = write_federation(tmp_path, method=method)
    Policy(federation=path).check()
    strict = {"federation": path, "synthetic": False}
    why = f"{method} sends synthetic samples that are condensed from private ones, which this site's policy does not"
    with pytest.raises(UsageError, match=why):
        Policy(**strict).check()
    request = InfoHeader(method=method, settings={}, public=None)
    with pytest.raises(MessageError, match=f"refused: {why}"):
        Policy(trust_server=True, synthetic=False).accept(request)
    Policy(**{**strict, "federation": write_federation(tmp_path)}).check()  # fedmd sends none
