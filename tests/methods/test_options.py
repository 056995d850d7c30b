"""Options of the methods: none hides one that every method has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from tests.federation_harness import FederationHarness

from fedchoir import methods
from fedchoir.core.settings import Settings
from fedchoir.data.options import DataOptions
from fedchoir.utils.errors import UsageError

DATA = {field.name for field in fields(DataOptions)}


@pytest.mark.parametrize("name", methods.registry())
def test_options_of_the_data_mean_the_same_for_every_method(name: str) -> None:
    for key, field in methods.get(name).Params.model_fields.items():
        assert field.description, f"{key} says nothing about itself"
        if key in DATA:
            assert field.description == Settings.model_fields[key].description, f"{key} means something else here"


@pytest.mark.parametrize("name", methods.registry())
def test_profiles_set_only_options_that_exist(name: str) -> None:
    cls = methods.get(name)
    for base in cls.__mro__:
        for profile, options in vars(base).get("profiles", {}).items():
            assert profile.partition(":")[0] in ("fixed", "paper", "official")
            assert set(options) <= set(cls.Params.model_fields), (base, profile)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fedavg", {"eval_model": "own", "fraction": 0.5}, r"tested = 'own' .* fraction = 0.5: .* set fraction to 1"),
        ("fedmd", {"eval_model": "own", "average": "after-local"}, r"tested = 'own' .* set average to before-local"),
        ("fccl", {"own_logits": "previous", "fraction": 0.5}, r"own_logits = 'previous' .* with fraction = 0.5: "),
        ("fccl", {"own_logits": "previous", "sync": "epoch"}, r"own_logits = 'previous' .* with sync = 'epoch': "),
    ],
)
def test_options_that_exclude_each_other(
    method: str, settings: dict[str, Any], line: str, harness: Callable[..., FederationHarness]
) -> None:
    with pytest.raises(UsageError, match=rf"^{line}"):
        harness(method, models=("simple_cnn@4",), **settings)


def test_encoders_that_are_alike_are_not_averaged_without_their_heads(
    harness: Callable[..., FederationHarness],
) -> None:
    for name in ("fedmd-ssl", "feddf-ssl"):
        assert not harness(name, models=("simple_cnn@4",), dim=8, hidden=16).method.averages("before-local")
