"""Options of the methods: none hides one that every method has."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fedchoir import methods
from fedchoir.data.options import DataOptions
from fedchoir.federation.settings import Settings

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
