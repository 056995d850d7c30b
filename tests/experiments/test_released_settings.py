"""Profiles official and official-plus against the list of the released code's settings, option by option."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedchoir import Experiment, methods
from fedchoir.core.settings import LocalOptions, PublicOptions, Settings
from fedchoir.data.registry import info
from fedchoir.experiments.config import make_plan

LIST: dict[str, Any] = tomllib.loads((Path(__file__).parent / "released_settings.toml").read_text())
DIFFERS = LIST.pop("differs")
CASES = [
    pytest.param(name, profile, scenario, id=f"{name} {profile} {scenario}")
    for name, program in LIST.items()
    for profile in program["profiles"]
    for scenario in program["scenarios"]
]
ELSEWHERE = {
    "activation_budget_gb", "class_weights", "momentum",  # no numbers, or without effect with Adam
    "pretrain_batch", "pretrain_weight_decay",  # listed where there is pretraining
    "ewc_weight", "fisher", "smoothing_confidence",  # of Table 16, which is not released, and of a control of ours
}  # fmt: skip
"""Options that a program need not list."""


def released(name: str, scenario: str) -> dict[str, Any]:
    """The settings of a program in a scenario, with the lines that say so."""
    program = LIST[name]
    base = released(program["like"], scenario) if "like" in program else {}
    return base | program.get("all", {}) | program.get(scenario, {})


def effective(name: str, profile: str, scenario: str) -> dict[str, Any]:
    plan = make_plan(Experiment(method=LIST[name]["method"], scenario=scenario, profile=profile))
    values = {**plan.params.model_dump(mode="json"), "rounds": plan.rounds, "models": list(plan.models)}
    values["private"] = values["private"] or list(info(scenario).private or ())
    if values["pretrain_epochs"]:
        values["pretrain_batch"] = values["pretrain_batch"] or values["local_batch"]
    return values


@pytest.mark.parametrize(("name", "profile", "scenario"), CASES)
def test_profile_is_the_released_code(name: str, profile: str, scenario: str) -> None:
    ours = effective(name, profile, scenario)
    wrong = {
        option: f"{ours[option]!r}, released: {value!r} ({', '.join(lines)})"
        for option, (value, *lines) in released(name, scenario).items()
        if ours[option] != value
    }
    assert not wrong


@pytest.mark.parametrize(("name", "profile", "scenario"), CASES)
def test_the_list_has_every_option_that_counts(name: str, profile: str, scenario: str) -> None:
    cls = methods.get(LIST[name]["method"])
    wanted = set(LocalOptions.model_fields) | set(cls.Params.model_fields) - set(Settings.model_fields)
    wanted |= {"rounds", "private"} | ({"test_split"} if scenario.startswith("office") else set())
    wanted |= {"weighting"} if not cls.heterogeneous else set()
    wanted |= set(PublicOptions.model_fields) | {"average"} if cls.needs_public else set()
    assert wanted - set(released(name, scenario)) <= ELSEWHERE


@pytest.mark.parametrize(("name", "profile", "scenario"), CASES)
def test_what_a_profile_changes_is_on_the_list(name: str, profile: str, scenario: str) -> None:
    """Nothing leaks in from another program's section."""
    fixed = effective(name, "fixed", scenario)
    ours = effective(name, profile, scenario)
    changed = {option for option in ours if ours[option] != fixed.get(option)}
    assert changed - set(released(name, scenario)) <= {"weighting"}  # of methods that never average


def test_every_entry_names_its_source() -> None:
    for name, program in LIST.items():
        for scenario in program["scenarios"]:
            for option, (_, *lines) in released(name, scenario).items():
                assert lines, (name, option)
                known = re.match(r"[\w/+]+\.py:|[\w/+]+\.py: |nothing is spread", lines[0])
                assert known, (name, option, lines[0])
    assert set(DIFFERS) <= set(LIST)


def test_the_two_released_fccls_differ() -> None:
    old, copy = (effective("FCCL 2022", profile, "digits") for profile in ("official", "official-plus"))
    differing = {option for option in old if old[option] != copy[option]}
    assert {"own_logits", "teacher_batchnorm", "public_augment", "public_drop_last", "public_batch", "local_epochs",
            "local_batch", "lr_schedule", "local_weight_decay", "normalisation", "private"} <= differing  # fmt: skip
