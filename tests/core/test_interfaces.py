"""Which engine can do what: the server asks by these protocols, not by class."""

from __future__ import annotations

import pytest

from fedchoir import methods
from fedchoir.core.interfaces import DeferringEngine, FederatedMethod, SecureEngine
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.multiprocess.engine import MultiprocessEngine

ENGINES = {LocalEngine: (False, True), MultiprocessEngine: (False, False), FlowerEngine: (True, True)}
ENGINE = ("execute", "evaluate", "states", "saved", "load")


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_have_what_the_server_calls(engine: type) -> None:
    assert all(callable(getattr(engine, name, None)) for name in ENGINE)
    assert (issubclass(engine, DeferringEngine), issubclass(engine, SecureEngine)) == ENGINES[engine]


@pytest.mark.parametrize("name", methods.registry())
def test_methods_have_what_the_server_calls(name: str) -> None:
    method = methods.get(name)
    expected = [n for n in vars(FederatedMethod) if not n.startswith("_")]
    assert set(expected) >= {"setup", "round", "global_weights", "server_metrics", "requires_individual_payloads"}
    assert [n for n in expected if not hasattr(method, n)] == []
