from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fake_results import write_run

from fedchoir.core.result import read_events
from fedchoir.reporting.archive import archive, main
from fedchoir.reporting.store import STORE, events_of, extra, find_results, read_records
from fedchoir.utils.errors import UsageError

NAMES = ("digits-solo-seed0", "digits-fccl+-seed0")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The folder of a sweep with one finished and one unfinished run."""
    out = tmp_path / "out"
    for name, method, done in zip(NAMES, ("solo", "fccl+"), (4, 2), strict=True):
        write_run(out / name, method, 0, rounds=4, done=done)
        text = (out / name / "experiment.toml").read_text()
        (out / name / "experiment.toml").write_text(f'data_root = "/home/me/data"\nout = "/home/me/runs/x"\n{text}')
    labels = dict(zip(NAMES, ("alone", "fccl+"), strict=True))
    manifest = {"table": None, "title": "t", "runs": labels, "published": {NAMES[0]: ["fccl+/table8:solo"]}}
    (out / "sweep.json").write_text(json.dumps(manifest))
    return out


def test_finished_runs_are_stored_without_paths_of_the_machine(sweep: Path, tmp_path: Path) -> None:
    section = tmp_path / "results" / "small"
    assert archive(sweep, section) == [NAMES[1]]
    (record,) = read_records(section / STORE)
    assert "/home/me" not in (section / STORE).read_text()
    assert record["experiment"] == {
        "method": "solo",
        "scenario": "digits",
        "public": "cifar100",
        "seed": 0,
        "rounds": 4,
    }
    (stored,), (original,) = find_results([section]), find_results([sweep / NAMES[0]])
    fields = type(stored).model_fields
    assert {key: getattr(stored, key) for key in fields} == {key: getattr(original, key) for key in fields}
    assert (extra(stored, "label"), extra(stored, "published")) == ("alone", ["fccl+/table8:solo"])
    assert events_of(stored) == read_events(sweep / NAMES[0] / "events.jsonl")


def test_stored_runs_stay_and_a_run_again_replaces_its_record(sweep: Path, tmp_path: Path) -> None:
    archive(sweep, tmp_path / "kept")
    write_run(sweep / NAMES[1], "fccl+", 0, rounds=4)
    (sweep / NAMES[0] / "result.json").unlink()
    assert archive(sweep, tmp_path / "kept") == [NAMES[0]]
    assert [record["name"] for record in read_records(tmp_path / "kept" / STORE)] == list(NAMES)
    write_run(sweep / NAMES[0], "solo", 0, rounds=6)
    archive(sweep, tmp_path / "kept")
    assert [(r["name"], r["rounds"]) for r in read_records(tmp_path / "kept" / STORE)] == [(NAMES[0], 6), (NAMES[1], 4)]


def test_runs_are_stored_in_the_order_of_the_section(tmp_path: Path) -> None:
    """Whatever sweep a run comes from, and whenever it was run: tables follow ``sweep.toml``."""
    section = tmp_path / "kept"
    section.mkdir()
    variants = "".join(f'[[variant]]\nmethod = "{method}"\n' for method in ("solo", "fedmd", "fccl+"))
    (section / "sweep.toml").write_text(f'seeds = [0, 1]\n[base]\nscenario = "digits-lite"\n{variants}')
    runs = [("fccl+", 1), ("other", 0), ("fccl+", 0), ("solo", 1), ("fedmd", 0), ("solo", 0)]
    for part in (runs[:3], runs[3:]):
        names = {f"digits-lite-{method}-seed{seed}": method for method, seed in part}
        for name, method in names.items():
            write_run(tmp_path / "out" / name, method, int(name[-1]), rounds=1)
        (tmp_path / "out" / "sweep.json").write_text(json.dumps({"table": None, "title": "t", "runs": names}))
        archive(tmp_path / "out", section)
    stored = [record["name"].removeprefix("digits-lite-") for record in read_records(section / STORE)]
    assert stored == ["solo-seed0", "solo-seed1", "fedmd-seed0", "fccl+-seed0", "fccl+-seed1", "other-seed0"]


def test_a_folder_that_is_no_sweep_is_named(tmp_path: Path) -> None:
    for content in (None, "{}", "[]"):
        if content:
            (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(UsageError, match="is not the folder of a sweep"):
            archive(tmp_path, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_command(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(str(sweep), str(tmp_path / "kept"))
    assert capsys.readouterr().out == f"{NAMES[1]} has not finished, so it is not stored\n"
    with pytest.raises(SystemExit, match="usage"):
        main("one")
    with pytest.raises(SystemExit, match="is not the folder of a sweep"):
        main(str(tmp_path), str(tmp_path / "kept"))
