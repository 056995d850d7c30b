"""examples/four_hospitals.ipynb: four real nodes and a server, from keys to prediction."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import onnx
import psutil
import pytest
from tests.notebooks import Executed, execute, numbers

pytestmark = pytest.mark.e2e
MODELS = {
    "cleveland": "logistic", "hungary": "mlp", "switzerland": "ft_transformer", "long-beach": "custom:risk_net.make"
}  # fmt: skip


def processes_below(folder: Path) -> list[str]:
    found = psutil.process_iter(["cwd", "cmdline"])
    return [str(p.info["cmdline"]) for p in found if Path(p.info["cwd"] or "/").is_relative_to(folder)]


def test_four_hospitals(tmp_path: Path) -> None:
    notebook = execute("four_hospitals.ipynb", tmp_path)
    assert processes_below(tmp_path) == []
    (folder,) = (tmp_path / "tmp").glob("four-hospitals-*")
    check_files(folder)
    check_preparation(notebook, folder)
    check_run(notebook, folder)
    check_trained_model(notebook, folder)


def check_files(folder: Path) -> None:
    """No private key and no patient of a hospital is on the server."""
    on_server = {path.name for path in (folder / "server" / "keys").iterdir()}
    assert on_server == {"ca.crt", "ca.key", "server.crt", "server.key", *(f"{name}.pub" for name in MODELS)}
    assert not list((folder / "server").rglob("*.csv"))
    assert not list((folder / "server" / "run").rglob("state-*"))
    for name in MODELS:
        assert (folder / name / "keys" / name).stat().st_mode & 0o077 == 0


def check_preparation(notebook: Executed, folder: Path) -> None:
    counts = {line.split()[0]: numbers(line) for line in notebook.shown("value_counts").splitlines()[1:]}
    assert list(counts) == list(MODELS)
    assert counts["switzerland"] == [0, 30]
    assert notebook.shown('"keys --host').count("fingerprint") == 1
    assert notebook.shown('"keys --site').count("SHA256:") == len(MODELS)
    announced = notebook.shown("federation show")
    assert "share: logits, 4 times 50×2, 1.6 KiB (public outputs)" in announced
    assert "(weights)" not in announced
    assert "someone who has what you send about public samples: 0." in announced
    assert notebook.shown('"node init').count("anything else is refused") == len(MODELS)
    for name in MODELS:
        policy = tomllib.loads((folder / name / "policy.toml").read_text())
        agreed = hashlib.sha256((folder / name / "federation.toml").read_bytes()).hexdigest()
        assert policy == {
            "federation": "federation.toml", "federation_sha256": agreed, "min_sites": 4, "max_parameters": 100000
        }  # fmt: skip


def check_run(notebook: Executed, folder: Path) -> None:
    served = notebook.shown('"serve federation.toml"')
    for name, model in MODELS.items():
        assert f"{name}: {model}, " in served
    assert [line[:12] for line in served.splitlines() if line.startswith("round ")] == ["round 1 of 2", "round 2 of 2"]
    events = [json.loads(line) for line in (folder / "server" / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["left_out"] for event in events] == [[], []]
    rows = notebook.shown("result.json").splitlines()[2:]
    assert [row.split()[:2] for row in rows] == [[name, model] for name, model in MODELS.items()]
    assert all(50 < numbers(row)[-1] <= 100 for row in rows)

    log = notebook.shown('"node log').splitlines()
    assert sum("sends logits 4 tensors with 400 numbers" in line for line in log) == 2
    assert sum("the server asks for" in line for line in log) == 3
    assert "sends model: ft_transformer, train: 30, test: 16, classes: ['absent', 'present']" in log[3]
    assert not [line for line in log if "refused: " in line or "failed" in line]


def check_trained_model(notebook: Executed, folder: Path) -> None:
    command, header, *lines = notebook.shown('"predict work').splitlines()
    assert command == "cleveland$ fedchoir predict work new-patients.csv"
    assert header == "sample,class,p(absent),p(present)"
    predicted = [[float(p) for p in line.split(",")[2:]] for line in lines]
    assert len(predicted) == 3
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in predicted)
    onnx.checker.check_model(str(folder / "cleveland" / "heart.onnx"))
    assert "logistic" in (folder / "cleveland" / "heart.onnx.md").read_text()
    exported = [numbers(line)[1:] for line in notebook.shown("onnxruntime.InferenceSession").splitlines()[1:]]
    assert exported == [pytest.approx(row, abs=1e-4) for row in predicted]
