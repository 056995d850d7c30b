"""FEDERATION.toml: what is read from it, and one line for what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedchoir.deploy.config import FederationFile, read_federation
from fedchoir.utils.errors import UsageError

SITES = [{"name": name, "key": f"{name}.pub"} for name in "abc"]


def read(folder: Path, **changes: Any) -> FederationFile:
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps({"method": "fccl+", "public": "photos", "sites": SITES, **changes}))
    return read_federation(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": [{"name": "a", "key": "a.pub"}]}, "two or more sites"),
        ({"sites": [*SITES, {"name": "a", "key": "a.pub"}]}, "two or more sites with different names"),
        ({"sites": [{"name": "a", "key": "a.pub"}, {"name": "b"}]}, "site b has no key"),
        ({"sites": [{"name": "a", "key": "a.pub"}, {"name": "../b", "key": "b"}]}, "site 2: name"),
        ({"sites": [*SITES, {"name": "d", "key": "d.pub", "revoked": True}]}, "site d is revoked: give the model"),
        ({"quorum": 2}, "quorum = 2"),
        ({"methd": "x"}, "did you mean method"),
        ({"insecure": True}, "insecure = true with address = '0.0.0.0:8000' is not possible"),
        ({"insecure": True, "address": "fed.example.org:8000"}, "address should be 127.0.0.1:PORT"),
    ],
)
def test_one_line_says_what_is_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        read(tmp_path, **changes)
    assert "\n" not in str(error.value)
    assert "federation.toml" in str(error.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    federation = read(tmp_path, out="runs/one", ca="/etc/ca.crt")
    assert federation.out == tmp_path / "runs" / "one"
    assert federation.ca == Path("/etc/ca.crt")
    assert federation.key == tmp_path / "keys" / "server.key"
    assert [site.key for site in federation.sites] == [tmp_path / f"{name}.pub" for name in "abc"]


def test_sites_need_no_keys_without_tls(tmp_path: Path) -> None:
    sites = [{"name": "a"}, {"name": "b"}]
    federation = read(tmp_path, insecure=True, sites=sites, max_message_mb=2, address="127.0.0.1:8000")
    assert [site.key for site in federation.sites] == [None, None]
    assert federation.limit == 2 * 2**20


def test_the_plan_has_the_settings_of_the_file(tmp_path: Path) -> None:
    plan = read(tmp_path, rounds=7, seed=3, settings={"local_epochs": 5}).plan()
    assert (plan.rounds, plan.experiment.seed, plan.params.local_epochs, plan.public) == (7, 3, 5, "photos")
    assert read(tmp_path, method="fedavg").plan().public is None  # it needs none


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"beta": 0.1}}, "beta is not possible in a federation: its sites have their own data"),
        ({"settings": {"held_out": "svhn"}}, "held_out is not possible in a federation"),
        ({"settings": {"rotate": True}}, "rotate is not possible in a federation"),
        ({"settings": {"size_skew": 1.0}}, "size_skew is not possible in a federation"),
        ({"settings": {"join_late": "c:2"}}, "join_late is not possible in a federation"),
        ({"settings": {"local_epochs": -1}}, "local_epochs = -1"),
        ({"secure": True, "sites": SITES[:2]}, "secure = true is not possible with fccl+: 2 clients are too few"),
    ],
)
def test_plans_that_are_not_possible(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read(tmp_path, **changes).plan()


def test_a_public_set_is_required_by_methods_that_use_one() -> None:
    federation = FederationFile.model_validate({"method": "fccl+", "sites": SITES})
    with pytest.raises(UsageError, match="public is missing: fccl\\+ needs a public set"):
        federation.plan()
