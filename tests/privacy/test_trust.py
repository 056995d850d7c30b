"""Nothing that arrives can run, and what is too large, unsealed or unknown is refused."""

from __future__ import annotations

import errno
import io
import pickle
import re
import stat
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
from fedchoir.deploy.client_worker import Worker
from fedchoir.deploy.config import read_federation
from fedchoir.deploy.keys import make_server, make_site, read_public
from fedchoir.deploy.node import NodeOptions
from fedchoir.deploy.server import serve
from fedchoir.deploy.signing import Signer, verify_signature
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


def test_runs_cannot_name_files_outside_the_work_folder(tmp_path: Path) -> None:
    worker = Worker(None, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="not the name of a run"):
        worker._path({"run": "../../etc"}, 1)


def test_seals_are_for_one_server_run_node_and_content(tmp_path: Path) -> None:
    make_server(tmp_path / "ours", ["127.0.0.1"]), make_server(tmp_path / "theirs", ["127.0.0.1"])
    ours, theirs = (Signer.read(tmp_path / n / "server.crt", tmp_path / n / "server.key") for n in ("ours", "theirs"))
    ca, said = tmp_path / "ours" / "ca.crt", ("{}", [b"abc"])
    good = ours.seal(1, 2, *said)
    verify_signature(ca, ours.certificate, good, 1, 2, *said)
    for certificate, signature, rest in (
        (ours.certificate, good, (3, 2, "{}", [b"abc"])),
        (ours.certificate, good, (1, 3, "{}", [b"abc"])),
        (ours.certificate, good, (1, 2, "[]", [b"abc"])),
        (ours.certificate, good, (1, 2, "{}", [b"abd"])),
        (ours.certificate, good, (1, 2, "{}", [b"ab", b"c"])),
        (ours.certificate, b"", (1, 2, "{}", [b"abc"])),
        (theirs.certificate, theirs.seal(1, 2, *said), (1, 2, "{}", [b"abc"])),
        (b"", good, (1, 2, "{}", [b"abc"])),
    ):
        with pytest.raises(MessageError, match="not sealed"):
            verify_signature(ca, certificate, signature, *rest)


def test_private_keys_are_for_their_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    make_server(tmp_path, ["fed.example.org", "10.0.0.1"])
    private, public = make_site(tmp_path, "hospital-a")
    for name in ("ca.key", "server.key", "hospital-a"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    before = private.read_bytes()
    for again in (lambda: make_site(tmp_path, "hospital-a"), lambda: make_server(tmp_path, ["x"])):
        with pytest.raises(UsageError, match="is there already"):
            again()
    assert private.read_bytes() == before
    assert read_public(public).startswith(b"-----BEGIN PUBLIC KEY")
    with pytest.raises(UsageError, match="not a public key"):
        read_public(private)
    with pytest.raises(UsageError, match="letters, digits"):
        make_site(tmp_path, "../evil")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": [{"name": "a", "key": "a.pub"}]}, "two or more sites"),
        ({"sites": [{"name": "a", "key": "a.pub"}, {"name": "b"}]}, "site b has no key"),
        ({"sites": [{"name": "a", "key": "a.pub"}, {"name": "../b", "key": "b"}]}, "site 2: name"),
        ({"quorum": 2}, "quorum = 2"),
        ({"methd": "x"}, "did you mean method"),
    ],
)
def test_a_federation_file_says_in_one_line_what_is_wrong(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    import tomli_w

    good = {"method": "fccl+", "public": "photos", "sites": [{"name": n, "key": f"{n}.pub"} for n in "ab"]}
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps({**good, **change}))
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        read_federation(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--ca is missing (fedchoir keys makes it); --insecure only rehearses"),
        ({"ca": "ca.crt"}, "--key is missing (fedchoir keys makes it); --insecure only rehearses"),
        ({"ca": "ca.crt", "key": "lost"}, "--key lost: there is no such file"),
        ({"server": "fed.example.org"}, "it should be HOST:PORT"),
    ],
)
def test_a_node_without_keys_does_not_start_unless_it_says_insecure(
    options: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.crt").touch()
    paths = {name: Path(value) for name, value in options.items() if name != "server"}
    made = NodeOptions(options.get("server", "localhost:8000"), **paths)
    with pytest.raises(UsageError, match=re.escape(message)):
        made.check()
    NodeOptions("localhost:8000", insecure=True).check()


def test_a_server_without_keys_does_not_start_unless_it_says_insecure(tmp_path: Path) -> None:
    import tomli_w

    sites = [{"name": n, "key": f"{n}.pub"} for n in "ab"]
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps({"method": "fccl+", "public": "photos", "sites": sites}))
    with pytest.raises(UsageError, match=r"cannot read .*server.key: No such file.*fedchoir keys makes it"):
        serve(read_federation(path))


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
