"""Scenarios by name, and folders as scenarios."""

from __future__ import annotations

import pytest

from fedchoir.data.scenario import SCENARIOS, info, load_scenario
from fedchoir.utils.errors import UsageError


@pytest.fixture
def sites(tmp_path, write_npz):
    """Four hospitals with seven classes each."""
    for name in ("north", "east", "south", "west"):
        write_npz(tmp_path / "sites" / f"{name}.npz", train=70, test=21, classes=7, shape=(20, 24, 3))
    return tmp_path / "sites"


def test_known_scenarios():
    assert list(SCENARIOS) == [
        "digits-lite",
        "digits",
        "office-caltech",
        "office31",
        "office-home",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "vireofood172",
        "heart",
        "har",
        "har-people",
        "amazon-reviews",
    ]
    for name, known in SCENARIOS.items():
        assert known.name == name
        assert len(known.sources) == len(known.domains)
        assert known.private is None or len(known.private) == len(known.domains)
        if known.kind == "domain-shift":
            assert len(known.domains) % len(known.models) == 0
        else:
            assert known.defaults["clients"] == 10
    assert SCENARIOS["digits"].private == (150, 80, 5000, 1800)
    assert [name for name, known in SCENARIOS.items() if known.top_k == 5] == ["office31", "office-home"]


def test_unknown_scenario():
    with pytest.raises(UsageError, match=r"scenario: 'digit' is neither one of digits-lite, .* nor a folder"):
        info("digit")


def test_bad_folders_are_named(tmp_path, sites):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no clients; wanted one sub-folder"):
        load_scenario(str(tmp_path / "empty"))
    (sites / "north.npz").write_bytes(b"")
    with pytest.raises(UsageError, match=r"north\.npz: not a readable \.npz"):
        load_scenario(str(sites))
    (sites / "north").mkdir()
    with pytest.raises(UsageError, match="client 'north' occurs twice"):
        info(str(sites))
