"""Nothing that arrives or lies in a file can run code."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedchoir
from fedchoir.data.public import load_public
from fedchoir.payload import Payload, PayloadError, load_tensors
from fedchoir.utils.errors import UsageError

SOURCES = sorted(Path(fedchoir.__file__).parent.rglob("*.py"))
FORBIDDEN = {
    "pickle": r"^\s*(import|from)\s+(cloud)?pickle\b|\bpickle\.(load|loads|Unpickler)\b",
    "eval or exec": r"(?<![\w.])(eval|exec)\(",
    "allow_pickle": r"allow_pickle\s*=\s*True",
    "torch.load without weights_only": r"(?<!safetensors\.)torch\.load\((?![^)]*weights_only=True)",
    "yaml.load": r"yaml\.load\(",
    "shell": r"shell\s*=\s*True|os\.system\(",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_source_uses_functions_that_run_foreign_code(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [f"{path.name}: {m.group()}" for path in SOURCES if (m := pattern.search(path.read_text()))]
    assert len(SOURCES) > 100
    assert found == []


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.proof,))


def test_malicious_files_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    """A pickle as a payload, a state, a public set and a model file."""
    bomb = pickle.dumps(Bomb(tmp_path / "proof"))
    with pytest.raises(PayloadError):
        Payload.from_bytes(bomb)
    path = tmp_path / "state.safetensors"
    path.write_bytes(bomb)
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        load_tensors(path)
    archive = tmp_path / "data.npz"
    with zipfile.ZipFile(archive, "w") as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        file.writestr("x.npy", header.getvalue() + bomb)
    with pytest.raises(UsageError):
        load_public(str(archive))
    (tmp_path / "model.pt").write_bytes(bomb)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt", weights_only=True)
    assert not (tmp_path / "proof").exists()
    pickle.loads(bomb)  # noqa: S301 - to show that unpickling would have run it
    assert (tmp_path / "proof").exists()
