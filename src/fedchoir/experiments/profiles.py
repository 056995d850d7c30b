"""What a profile sets for a method: ``profiles.toml``, and the ``profiles`` that a plug-in has on its class."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedchoir.methods import Method

Profile = Literal["fixed", "paper", "official", "official-plus"]
Sections = Mapping[str, Mapping[str, Any]]


def profile_options(method: type[Method], profile: str, scenario: str = "", modality: str = "") -> dict[str, Any]:
    """The options that a profile sets for a method, in general and in one scenario or modality.

    >>> from fedchoir import methods
    >>> profile_options(methods.get("fccl"), "official", "digits")["local_epochs"]
    [40, 35, 3, 4]
    """
    general: dict[str, Any] = {}
    special: dict[str, Any] = {}
    for key, options in profile_sections(method):
        profiles, _, where = key.partition(":")
        if profile in profiles.split(",") and (not where or {scenario, modality} & set(where.split(","))):
            (special if where else general).update(options)
    return general | special


def profile_sections(method: type[Method]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sections of a method and its bases, from the most general class to the method itself."""
    for base in reversed(method.__mro__):
        ours: Sections = {}
        if base.__module__.startswith("fedchoir."):
            ours = _sections().get(vars(base).get("name", base.__name__), {})
        yield from ours.items()
        yield from vars(base).get("profiles", {}).items()


def not_given(method: str) -> dict[str, str]:
    """What a method's paper does not say, and what we run instead.

    >>> sorted(not_given("fbcl"))
    ['depth', 'pretraining', 'rounds', 'φ of FRR']
    """
    found: dict[str, str] = _read()["not_given"].get(method, {})
    return found


@cache
def _sections() -> dict[str, Sections]:
    """The sections by class. One under several names holds for each; that of a single name comes after it."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    content = {names: sections for names, sections in _read().items() if names != "not_given"}
    for names, sections in sorted(content.items(), key=lambda item: "," not in item[0]):
        for name in names.split(","):
            for key, options in sections.items():
                found.setdefault(name, {})[key] = {**found.get(name, {}).get(key, {}), **options}
    return dict(found)


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
