from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from tests.fake_results import write_run

from fedchoir.core.result import read_events
from fedchoir.experiments.config import Experiment
from fedchoir.reporting.run_groups import rows
from fedchoir.reporting.store import (
    STORE,
    evaluated,
    events_of,
    extra,
    find_results,
    pack_events,
    read_records,
    unpack_events,
    write_records,
)
from fedchoir.reporting.tables import as_text
from fedchoir.utils.errors import UsageError

RESULTS = Path(__file__).parents[2] / "results"
STORES = sorted(RESULTS.glob(f"*/{STORE}"))


def test_events_survive_packing(tmp_path: Path) -> None:
    events = read_events(write_run(tmp_path, "fccl", 0, rounds=5) / "events.jsonl")
    events[1] |= {"accuracy": None, "intra_avg": None, "inter_avg": None}
    events[2]["own"] = [1.0, None]
    del events[3]["losses"]["usps"]
    events[4]["losses"]["site/7"] = {"local_loss": 0.5}
    packed = json.loads(json.dumps(pack_events(events)))
    assert unpack_events(packed) == events
    assert packed["losses/usps/local_loss"][3] is None


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = [{"name": "é", "b": [1.5, None], "a": 0.1 + 0.2}, {"name": "x"}]
    write_records(tmp_path / "deep" / STORE, records)
    assert read_records(tmp_path / "deep" / STORE) == records
    assert (tmp_path / "deep" / STORE).read_text().startswith('{"a":0.30000000000000004,"b":[1.5,null],"name":"é"}\n')


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    (tmp_path / STORE).write_text("{}\n{")
    with pytest.raises(UsageError, match=r"runs\.jsonl is not a store of runs"):
        find_results([tmp_path])
    (tmp_path / STORE).write_text('{"name": "x"}\n')
    with pytest.raises(UsageError, match=r"runs\.jsonl, line 1"):
        find_results([tmp_path])


def test_run_folders_and_stores_are_found_together(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "solo", 0, rounds=3)
    (tmp_path / "store").mkdir()
    record = {**json.loads((tmp_path / "runs" / "a" / "result.json").read_text()), "name": "b", "label": "mine"}
    write_records(tmp_path / "store" / STORE, [record])
    found = {extra(result, "name"): result for result in find_results([tmp_path])}
    assert set(found) == {"a", "b"}
    assert extra(found["b"], "label") == "mine"
    assert len(events_of(found["a"])) == 3
    assert events_of(found["b"]) == []
    with pytest.raises(UsageError, match="does not exist"):
        find_results([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no run there has finished"):
        find_results([tmp_path / "empty"])


def test_a_manifest_gives_label_order_and_published_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, "solo", 0, rounds=3)
    manifest = {"table": "fccl+/table8", "runs": {"b": "solo", "a": "mine"}, "published": {"a": ["fccl/table1:solo"]}}
    (tmp_path / "sweep.json").write_text(json.dumps(manifest))
    first, second = find_results([tmp_path])
    assert (extra(first, "name"), extra(first, "label"), extra(first, "published")) == (
        "b", "solo", ["fccl+/table8:solo"],
    )  # fmt: skip
    assert extra(second, "published") == ["fccl/table1:solo"]


# -- the store of this repository --------------------------------------------------------------------------------------


def test_results_are_few_files() -> None:
    assert len([path for path in RESULTS.rglob("*") if path.is_file()]) <= 150
    assert {store.parent for store in STORES} == {about.parent for about in RESULTS.glob("*/about.toml")}


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.parent.name)
def test_every_table_can_be_built_from_the_store(store: Path) -> None:
    """With pandas, and not with the reporting code, the same means and standard deviations come out."""
    table_rows = rows(find_results([store]))
    text = as_text(table_rows, "md")
    frame = pandas.read_json(store, lines=True, precise_float=True)
    models = frame.clients.map(lambda clients: str([client["model"] for client in clients]))
    groups = frame.groupby([frame.label, frame.public.map(str), frame["rounds"], models, frame.settings.map(str)])
    assert len(groups) == len(table_rows)
    for _, runs in groups:
        for column in ("intra_avg", "inter_avg"):
            if runs[column].notna().all():
                assert f"{runs[column].mean():.2f} ± {runs[column].std():.2f}" in text


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.parent.name)
def test_records_are_complete_and_not_tied_to_a_machine(store: Path) -> None:
    for result, record in zip(find_results([store]), read_records(store), strict=True):
        experiment = Experiment(**record["experiment"])
        assert (experiment.method, experiment.scenario, experiment.seed) == (
            result.method,
            result.scenario,
            result.seed,
        )
        assert experiment.data_root is None
        assert experiment.out is None
        assert record["label"]
        last = [event["intra_avg"] for event in evaluated(result)][-3:]
        assert not last or sum(last) / len(last) == pytest.approx(result.intra_avg)
