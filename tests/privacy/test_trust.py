"""Nothing that arrives can run, and what is too large or unknown is refused."""

from __future__ import annotations

import errno
import io
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedchoir
from fedchoir import Experiment, methods, run
from fedchoir.core import checkpoint
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.engines.messages import Envelope, MessageError, function_of, unpack_action, unpack_reply
from fedchoir.payload import Payload, PayloadError, load_tensors
from fedchoir.utils.errors import StorageError, UsageError

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
def test_no_source_uses_what_could_run_foreign_code(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    guilty = [f"{path.name}: {m.group()}" for path in SOURCES if (m := pattern.search(path.read_text()))]
    assert guilty == []


class Bomb:
    """Goes off when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.proof,))


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    return pickle.dumps(Bomb(tmp_path / "boom"))


def test_malicious_files_do_not_go_off(bomb: bytes, tmp_path: Path) -> None:
    """As a payload, a state, a public set, a site's data and a model file: refused, and nothing has run."""
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
    from fedchoir.data.public import load_public

    with pytest.raises(UsageError):
        load_public(str(archive))
    (tmp_path / "model.pt").write_bytes(bomb)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt", weights_only=True)
    assert not (tmp_path / "boom").exists()
    pickle.loads(bomb)  # noqa: S301 - the bomb is real
    assert (tmp_path / "boom").exists()


def make_method() -> methods.Method:
    task = FederationSpec(
        ("a", "b"), (ClientInfo("one", "mlp", 4, 4, "own"), ClientInfo("two", "mlp", 4, 4, "own")), 1, 0
    )
    return methods.get("fedmd")(methods.get("fedmd").Params(), task)


@pytest.mark.parametrize("name", ["__init__", "_private", "__class__", "params", "nothing", "server", 3, None, "os"])
def test_a_message_can_name_only_the_methods_own_functions(name: Any) -> None:
    with pytest.raises(MessageError, match="has no function"):
        function_of(make_method(), name)


def test_what_is_sent_back_must_have_been_declared() -> None:
    packed = {"kind": "exchange", "name": "practise", "batches": [], "heard": None, "dims": {}}
    with pytest.raises(TypeError, match="declares none"):
        unpack_action(Envelope({}), packed, make_method())


def test_size_is_looked_at_before_the_content() -> None:
    with pytest.raises(MessageError, match="1000000 are allowed"):
        Envelope.read("{not even json", [b"x" * 2_000_000], 1_000_000)


@pytest.mark.parametrize("header", [{}, {"parts": [5], "news": {}, "seconds": {}}, {"parts": [-1]}, {"parts": "abc"}])
def test_malformed_replies_are_errors_and_not_crashes(header: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        unpack_reply(Envelope({"news": {}, "seconds": {}, **header}))


@pytest.mark.parametrize("text", ["[1, 2]", "null", "{", ""])
def test_headers_that_are_not_objects(text: str) -> None:
    with pytest.raises(MessageError):
        Envelope.read(text, [])


def test_a_full_disk_stops_the_run_with_the_checkpoint_before_intact(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, straight = small("fedmd", rounds=3), small("fedmd", "straight", rounds=3)
    save, saved = checkpoint.save_tensors, []

    def full(path: Path, tensors: Any) -> None:
        saved.append(path)
        if len(saved) > 6:  # in the middle of the second checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(StorageError, match=r"round 2 could not be written.*No space left"):
        run(experiment)
    folder = checkpoint.latest(experiment.out / "checkpoint")
    assert folder is not None
    assert checkpoint.facts(folder)["round"] == 0
    assert [p.name for p in folder.parent.glob("round-*")] == ["round-00000"]
    monkeypatch.undo()
    assert run(experiment, resume=True).accuracy == run(straight).accuracy


def test_settings_of_a_message_are_validated_like_any_others() -> None:
    with pytest.raises(ValueError):
        Settings(local_epochs=-1)
