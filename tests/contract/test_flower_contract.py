"""Every method gives the same numbers on the Flower engine as on the local one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests import helpers
from tests.conftest import VARIANTS
from tests.deploy.in_process import run_on_sites

from fedchoir import Experiment, methods, run

numbers = partial(helpers.numbers, without=("seconds", "messages"))


@pytest.mark.parametrize("name", [*methods.registry(), *VARIANTS])
def test_both_engines_give_the_same_numbers(name: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    local, flower = small(name, "local", rounds=2), small(name, "flower", rounds=2)
    run(local)
    result, transport = run_on_sites(flower, tmp_path / "sites")
    assert numbers(local) == numbers(flower)
    assert result.messages == len(transport.sent)
