"""Profiles: what profiles.toml and plug-ins set, and for which methods."""

from __future__ import annotations

from typing import get_args

import pytest

from fedchoir import Experiment, methods
from fedchoir.data.modalities import READERS
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments import profiles
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.profiles import Profile, not_given, profile_options, profile_sections
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
    assert set(profiles._sections()) <= known


def test_the_scenario_wins_over_the_general_and_the_method_over_its_base() -> None:
    fccl = methods.get("fccl")
    assert profile_options(fccl, "official")["lr_schedule"] == "constant"  # its own, over that of all methods
    assert profile_options(fccl, "official", "office-caltech")["test_split"] == "whole-folder"  # of all methods
    assert profile_options(fccl, "official", "digits")["private"] == [150, 80, 5000, 1800]  # over that of all methods
    assert profile_options(fccl, "official", "digits")["local_epochs"] == [40, 35, 3, 4]
    assert "local_epochs" not in profile_options(fccl, "official", "office31")


def test_a_section_under_several_names_holds_for_each() -> None:
    fccl, fedmd = (profile_options(methods.get(name), "official", "digits") for name in ("fccl", "fedmd"))
    assert fccl.items() > fedmd.items()
    assert fccl.keys() - fedmd.keys() == {"standardise", "own_logits"}


@pytest.mark.parametrize("scenario", ["digits", "office-caltech", "office31", "office-home"])
def test_all_methods_of_the_papers_start_from_the_models_of_solo(scenario: str) -> None:
    """What a pretrained model depends on is the same for all of them; `PretrainedTrainer` then trains it once."""
    compared = ["solo", "fedavg", "fedprox", "moon", "fedproc", "fedrs", "fedmd", "feddf", "fedmatch", "rhfl", "fml",
                "rcfl", "fccl", "fccl+"]  # fmt: skip
    starts = set()
    for name in compared:
        params = make_plan(Experiment(method=name, scenario=scenario, profile="paper")).params.of_pretraining()
        starts.add((params.pretrain_epochs, params.local_batch, params.local_lr, params.local_weight_decay,
                    params.optimizer, params.private_augment))  # fmt: skip
    assert starts == {(50, 256, 1e-3, 0.0, "adam", "none")}
    solo = make_plan(Experiment(method="solo", scenario=scenario, profile="paper")).params
    assert (solo.local_epochs, solo.model_dump()["epochs"]) == (0, 0)  # nothing after the 50 epochs


def test_what_a_paper_does_not_say_is_named() -> None:
    assert "rounds" in not_given("fbcl")
    assert not_given("solo") == {}
    assert set(profiles._read()["not_given"]) <= set(methods.registry())


def test_methods_inherit_the_sections_of_their_base() -> None:
    assert profile_options(methods.get("moon"), "paper", "digits")["eval_model"] == "own"
    assert profile_options(methods.get("byol"), "fixed") == profile_options(SelfSupervised, "fixed")
    assert profile_options(methods.get("byol"), "fixed")["optimizer"] == "sgd"


@pytest.mark.parametrize("profile", get_args(Profile))
@pytest.mark.parametrize("name", [name for name, cls in methods.registry().items() if cls.needs_public])
def test_on_condensed_samples_the_sections_are_those_of_the_method(name: str, profile: str) -> None:
    plain, condensed = (profile_options(methods.get(name, p), profile, "digits", "image") for p in (None, "condensed"))
    assert condensed == plain


def test_a_plugin_sets_its_own_on_its_class() -> None:
    class Mine(FedAvg):
        profiles = {"paper": {"local_batch": 7}, "paper:digits": {"local_epochs": 3}}

    assert profile_options(Mine, "paper")["local_batch"] == 7
    assert profile_options(Mine, "paper", "digits") == {
        "lr_schedule": "constant", "local_batch": 7, "public_batch": 512, "pretrain_epochs": 50, "eval_model": "own",
        "local_epochs": 3,
    }  # fmt: skip
