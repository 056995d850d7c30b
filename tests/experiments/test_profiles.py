"""Profiles: what profiles.toml and plug-ins set, and for which methods."""

from __future__ import annotations

from typing import get_args

import pytest

from fedchoir import methods
from fedchoir.data.modalities import READERS
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments import profiles
from fedchoir.experiments.profiles import Profile, profile_options, profile_sections
from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.self_supervised import SelfSupervised


@pytest.mark.parametrize("name", methods.registry())
def test_sections_name_profiles_scenarios_and_options_that_exist(name: str) -> None:
    cls = methods.get(name)
    for key, options in profile_sections(cls):
        names, _, where = key.partition(":")
        assert set(names.split(",")) <= set(get_args(Profile))
        assert not where or set(where.split(",")) <= {*SCENARIOS, *READERS}
        assert set(options) <= set(cls.Params.model_fields), key


def test_every_section_belongs_to_a_class() -> None:
    classes = {base for cls in methods.registry().values() for base in cls.__mro__}
    known = {vars(cls).get("name", cls.__name__) for cls in classes}
    assert set(profiles._read()) <= known


def test_the_scenario_wins_over_the_general_and_the_method_over_its_base() -> None:
    fccl = methods.get("fccl")
    assert profile_options(fccl, "official")["public_batch"] == 512  # its own, over that of all methods
    assert profile_options(fccl, "official", "office-caltech")["public_batch"] == 128  # of all public methods
    assert profile_options(fccl, "official", "digits")["local_epochs"] == [40, 35, 3, 4]
    assert "local_epochs" not in profile_options(fccl, "official", "office31")


def test_methods_inherit_the_sections_of_their_base() -> None:
    assert profile_options(methods.get("moon"), "paper", "digits")["eval_model"] == "own"
    assert profile_options(methods.get("byol"), "fixed") == profile_options(SelfSupervised, "fixed")
    assert profile_options(methods.get("byol"), "fixed")["optimizer"] == "sgd"


def test_a_plugin_sets_its_own_on_its_class() -> None:
    class Mine(FedAvg):
        profiles = {"paper": {"local_batch": 7}, "paper:digits": {"local_epochs": 3}}

    assert profile_options(Mine, "paper")["local_batch"] == 7
    assert profile_options(Mine, "paper", "digits") == {
        "lr_schedule": "constant", "local_batch": 7, "public_batch": 512, "eval_model": "own", "local_epochs": 3,
    }  # fmt: skip
