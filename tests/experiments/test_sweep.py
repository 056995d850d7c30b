"""Sweep files: the runs that a grid, variants, seeds and overrides come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedchoir.experiments.sweep import Overrides, SweepFile, jobs_of, parse_seeds, read_sweep
from fedchoir.utils.errors import UsageError


def test_grid_times_variants_times_seeds() -> None:
    file = SweepFile(
        seeds=(0, 3),
        base={"scenario": "digits", "method": "fccl+", "settings": {"local_epochs": 2}},
        grid={"omega": [1, 2], "public": ["cifar100", "photos"]},
        variant=[{}, {"label": "no FNTD", "settings": {"regulariser": "none"}}],
    )
    made = jobs_of(file, Path("out"))
    assert len(made) == 2 * 2 * 2 * 2
    job = next(j for j in made if j.name == "digits-photos-no-FNTD-omega=2-seed3")
    assert job.label == "no FNTD omega=2"
    assert job.out == Path("out") / job.name
    assert job.experiment.settings == {"local_epochs": 2, "omega": 2, "regulariser": "none"}
    assert (job.experiment.public, job.experiment.seed) == ("photos", 3)


def test_a_scenario_of_your_own_keeps_the_kind_of_models() -> None:
    file = SweepFile(
        base={"public": "cifar100", "settings": {"private": [0.01], "local_epochs": 3}},
        grid={"scenario": ["digits", "office31"], "method": ["fedmd"], "models": ["resnet12", "resnet10,resnet12"]},
    )
    alike, different = jobs_of(file, Path("out"), Overrides(scenario="digits-lite"))
    assert (alike.experiment.models, different.experiment.models) == (("resnet12@8",), None)
    assert {alike.experiment.scenario, different.experiment.scenario} == {"digits-lite"}
    assert alike.experiment.public is None
    assert alike.experiment.settings == {"local_epochs": 3}


def test_condensed_samples_are_a_public_set_of_every_scenario() -> None:
    file = SweepFile(
        base={"scenario": "digits", "method": "fccl+"},
        variant=[
            {"label": "photos", "public": "photos"},
            {"label": "condensed", "public": "condensed", "settings": {"per_class": 5}},
        ],
    )
    assert [job.experiment.public for job in jobs_of(file, Path("out"))] == ["photos", "condensed"]
    photos, condensed = jobs_of(file, Path("out"), Overrides(scenario="digits-lite"))
    assert (photos.experiment.public, condensed.experiment.public) == (None, "condensed")
    file = SweepFile(base={"method": "fccl+", "settings": {"per_class": 5}}, grid={"public": ["condensed", "photos"]})
    with pytest.raises(UsageError, match="there is no option 'per_class'"):
        jobs_of(file, Path("out"))


def test_overrides_seeds_and_only() -> None:
    file = SweepFile(base={"scenario": "digits-lite"}, grid={"method": ["solo", "fedmd", "fccl+"]})
    overrides = Overrides(seeds=(5,), values={"rounds": 2}, settings={"local_epochs": 1})
    made = jobs_of(file, Path("out"), overrides, only=["fccl+", "*-solo"])
    assert [job.name for job in made] == ["digits-lite-solo-seed5", "digits-lite-fccl+-seed5"]
    assert [job.label for job in jobs_of(file, Path("out"), only=["f*d*"])] == ["fedmd"]
    assert all(job.experiment.rounds == 2 and job.experiment.settings == {"local_epochs": 1} for job in made)
    assert overrides.tag == "-rounds=2-local_epochs=1"
    assert len(Overrides(settings={f"option_{i}": i for i in range(20)}).tag) < 80
    with pytest.raises(UsageError, match="fits no run; labels: solo, fedmd"):
        jobs_of(file, Path("out"), only=["fedmagic"])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"base": {"method": "fedmd"}, "grid": {"omga": [1]}},
            "digits-lite-fedmd-omga=1: fedmd: there is no option 'omga'",
        ),
        ({"base": {"method": "fccl+", "settings": {"omega": -1}}}, "omega = -1"),
        ({"base": {"method": "nonesuch"}}, "no method is called 'nonesuch'"),
        ({"grid": {"method": []}}, "method has no values"),
        ({"base": {"method": "solo", "round": 3}}, "there is no option 'round'"),
        (
            {"base": {"method": "fccl+"}, "variant": [{"settings": {"omega": 1}}, {"settings": {"omega": 2}}]},
            "two different runs are called 'digits-lite-fccl\\+-seed0'",
        ),
    ],
)
def test_nothing_starts_if_one_run_is_not_possible(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        jobs_of(SweepFile(**values), Path("out"))


def test_files_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('title = "x"\n[grids]\nmethod = ["solo"]\n')
    with pytest.raises(UsageError, match=r"there is no option 'grids'; did you mean grid\?"):
        read_sweep(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('like = "a"\nseeds = [1]\n')
    with pytest.raises(UsageError, match="seeds is not possible beside like"):
        read_sweep(tmp_path / "b.toml")
    for text in ("0", "x", "", "1,b"):
        with pytest.raises(UsageError, match="--seeds"):
            parse_seeds(text)
