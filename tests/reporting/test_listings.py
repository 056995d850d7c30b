"""Lists for the terminal: complete, at most 80 columns wide, with the values that a run uses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.helpers import Stop

from fedchoir import Experiment, methods, run
from fedchoir.experiments.config import make_plan
from fedchoir.reporting.listings import effective_options, listing, options_table


def at_80(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize("what", ["methods", "scenarios", "models", "public"])
def test_lists_fit_80_columns(what: str) -> None:
    text = at_80(listing(what))
    assert max(map(len, text.splitlines())) <= 80


def test_every_method_is_listed_whole_and_once() -> None:
    firsts = [line.split()[0] for line in at_80(listing("methods")).splitlines() if line.strip()]
    assert all(firsts.count(name) == 1 for name in methods.registry())


def test_names_of_options_are_never_broken() -> None:
    text = at_80(options_table("fccl+"))
    assert all(f" {name} " in text for name in methods.get("fccl+").Params.model_fields)


def test_options_of_a_condensed_public_set_are_listed_with_it_alone() -> None:
    on_condensed = effective_options("fedmd", "digits-lite", "fixed", "condensed")
    assert on_condensed["per_class"] == 30
    assert "per_class" not in effective_options("fedmd", "digits-lite", "fixed")
    assert " per_class " in at_80(options_table("fedmd", public="condensed"))


def shown_options(name: str, scenario: str, profile: str) -> dict[str, str]:
    """The options as a reader of the table sees them."""
    out = io.StringIO()
    Console(file=out, width=1000).print(options_table(name, scenario, profile))
    lines = out.getvalue().splitlines()
    start = next(k for k, line in enumerate(lines) if "───" in line)
    cells = [line.split("  ") for line in lines[start + 1 :] if line.strip()]
    return {parts[0].strip(): next(p for p in parts[1:] if p.strip()).strip() for parts in cells}


class StopAtOnce:
    """An observer that ends a run before its first round."""

    def began(self, *_: Any) -> None:
        raise Stop

    def client(self, *_: Any) -> None: ...

    def round(self, *_: Any) -> None: ...

    def ended(self) -> None: ...


@pytest.fixture(scope="module")
def many_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images per client for every method's default batch."""
    folder = tmp_path_factory.mktemp("many")
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        images = random.integers(0, 256, (330, 8, 8, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=images, y=np.arange(330) % 3)
    return folder


@pytest.mark.parametrize("profile", ["fixed", "paper", "official"])
@pytest.mark.parametrize("name", methods.registry())
def test_what_is_listed_is_what_runs(
    name: str, profile: Any, many_images: Path, public_shapes: Path, tmp_path: Path
) -> None:
    """The table, the plan and the settings that the run writes agree for every method and profile."""
    experiment = Experiment(
        method=name, scenario=str(many_images), public=str(public_shapes), profile=profile, device="cpu",
        models=("simple_cnn@4",), out=tmp_path / "run",
    )  # fmt: skip
    planned = make_plan(experiment).params
    listed = effective_options(name, str(many_images), profile)
    assert listed == {key: getattr(planned, key) for key in type(planned).model_fields}
    shown = shown_options(name, str(many_images), profile)
    assert shown == {key: str(value) if value not in (None, "") else "–" for key, value in listed.items()}
    with pytest.raises(Stop):
        run(experiment, observers=[StopAtOnce()])
    assert json.loads((tmp_path / "run" / "task.json").read_text())["settings"] == planned.model_dump(mode="json")


def test_a_finished_run_has_the_settings_of_its_plan(small: Callable[..., Experiment]) -> None:
    experiment = small("byol", rounds=1)
    assert run(experiment).settings == make_plan(experiment).params.model_dump(mode="json")
