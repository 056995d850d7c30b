"""Trackers: every round once, also when a run is resumed, and nothing but what its events hold."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.helpers import Stop, StopAfter, events

from fedchoir import Experiment, run
from fedchoir.experiments.tracking import MLflow, Tracker, make_trackers
from fedchoir.experiments.tracking.scalars import scalars
from fedchoir.utils.errors import UsageError


def test_tensorboard_has_every_round(small: Callable[..., Experiment]) -> None:
    experiment = small("fccl+", rounds=2)
    run(experiment, observers=make_trackers(["tensorboard"]))
    written = EventAccumulator(str(experiment.out / "tensorboard"))
    written.Reload()
    inter = [point.value for point in written.Scalars("accuracy/inter_avg")]
    assert inter == pytest.approx([event["inter_avg"] for event in events(experiment)], rel=1e-5)
    tags = set(written.Tags()["scalars"])
    assert {"local_loss/green", "cost/bytes_up", "seconds/total", "accuracy of red/mean over tests"} <= tags


def wandb_records(folder: Path) -> list[Any]:
    """The records of all offline files below a folder, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    records = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in leveldb_log(path.read_bytes()):
            records.append(Record())
            records[-1].ParseFromString(data)
    return records


def leveldb_log(content: bytes, start: int = 7, block: int = 32768) -> Iterator[bytes]:
    """The entries of a LevelDB log: fragments with checksum, length and kind (1 whole, 2 first, 3 middle, 4 last)."""
    whole, at = b"", start
    while at + 7 <= len(content):
        if block - at % block < 7:  # no fragment begins in the last bytes of a block
            at += block - at % block
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def wandb_rounds(records: list[Any]) -> list[dict[str, float]]:
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            rows.append({key: value for key, value in row.items() if not key.startswith("_")})
    return rows


@pytest.mark.slow
def test_wandb_and_mlflow_continue_the_tracked_run(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped and resumed. Both services have one run with each round once."""
    from mlflow import MlflowClient

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = small("fedmd", rounds=3)
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(1), *make_trackers(["wandb", "mlflow"])])  # before round 1 is sent
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("fedchoir").experiment_id])
    assert found.info.status == "KILLED"
    run(experiment, resume=True, observers=make_trackers(["wandb", "mlflow", "mlflow"]))

    happened = events(experiment)
    clients = [client["name"] for client in json.loads((experiment.out / "task.json").read_text())["clients"]]
    expected = [dict(scalars(event, clients)) for event in happened]
    (found,) = client.search_runs([found.info.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["method"] == "fedmd"
    for name in expected[0]:
        history = client.get_metric_history(found.info.run_id, name)
        assert [point.step for point in history] == [event["round"] for event in happened]
        assert [point.value for point in history] == pytest.approx([row[name] for row in expected])

    records = wandb_records(experiment.out)
    described = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert len({each.run_id for each in described}) == 1
    assert {each.host for each in described} == {"fedchoir"}  # not the name of this machine
    rows = wandb_rounds(records)
    assert [row.pop("round") for row in rows] == [event["round"] for event in happened]
    for row, wanted in zip(rows, expected, strict=True):
        assert row == pytest.approx(wanted)
    sent = b"".join(record.SerializeToString() for record in records if record.WhichOneof("record_type") != "header")
    for secret in (str(tmp_path), str(Path.cwd()), experiment.scenario, sys.executable):
        assert secret.encode() not in sent
    assert not list(experiment.out.glob("wandb/offline-run-*/files/*"))  # no output, code or list of packages
    database = (tmp_path / "mlflow.db").read_bytes()
    assert experiment.scenario.encode() not in database
    assert b"mlflow.source" not in database


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError, match=rf"{name} is not installed: pip install 'fedchoir\[{name}\]'"):
            make_trackers([name])
    with pytest.raises(UsageError, match=r"'comet' is not known; it should be one of tensorboard, wandb, mlflow"):
        make_trackers(["comet"])


class Down(Tracker):
    """A server that stops after the first round."""

    name = "down"

    def open(self, plan: Any, run: str | None) -> str:
        return "one"

    def send(self, round_: int, values: dict[str, float]) -> None:
        if round_:
            raise ConnectionError("no route to the server")

    def close(self, finished: bool) -> None:
        raise AssertionError("it is down")


def test_a_run_goes_on_without_its_tracker(small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small("solo", rounds=3)
    with pytest.warns(UserWarning, match="down gets no numbers from round 1 on: no route to the server"):
        result = run(experiment, observers=[Down()])
    assert result.rounds == 3
    assert json.loads((experiment.out / "tracking.json").read_text())["down"]["sent"] == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(UsageError, match="--track mlflow is not possible: "):
        run(small("solo", "other", rounds=1), observers=[MLflow()])
    assert "MLFLOW_RUN_ID" not in os.environ
