"""All parsers of what arrives from another site, from the server, or from a file that someone else may have changed."""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from cryptography import x509

from fedchoir import methods
from fedchoir.compression.chain import parse
from fedchoir.compression.wire import Traits, compressed
from fedchoir.compression.wire import read_payload as read_wire
from fedchoir.core import checkpoint
from fedchoir.core.actions import Action, Exchange, PublicBatch, Step
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.npz import read_arrays, read_headers
from fedchoir.data.tabular.files import read_table
from fedchoir.deploy.config import read_federation
from fedchoir.deploy.engine import Work
from fedchoir.deploy.keys import make_server, make_site, read_public
from fedchoir.deploy.signing import SignedMessage, Signer, verify_signature
from fedchoir.deploy.transport import GridTransport
from fedchoir.engines.headers import check_request, unpack_spec
from fedchoir.engines.messages import Envelope, MessageError, pack_action, pack_reply, pack_spec, unpack_reply
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.losses._common import off_diagonal
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, PayloadError, check
from fedchoir.privacy.budget import PrivacyBudget, Release
from fedchoir.reporting.run_data import read_run
from fedchoir.utils.errors import UsageError
from tests.fuzz.loop import Target


def folder_in_memory() -> tempfile.TemporaryDirectory[str]:
    """A folder for the parsers of files, on no disk where the system has such a place."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def all_targets(folder: Path) -> list[Target]:
    """Every parser with its corpus; files are written below ``folder``."""
    return [*_messages(), *_settings(folder), *_state(folder), *_keys(folder), *_data(folder)]


# -- messages ----------------------------------------------------------------------------------------------------------

CLIENTS = (ClientInfo("a", "mlp", 40, 10, "own"), ClientInfo("b", "resnet10@4", 30, 10, "own"))
LOGITS = Payload(logits=torch.randn(4, 3), scalars={"loss": 0.5})


def _messages() -> Iterator[Target]:
    spec = FederationSpec(("cat", "dog"), CLIENTS, 3, 0, public_size=8)
    alike = replace(spec, clients=tuple(replace(client, model="mlp") for client in CLIENTS))
    fedmd = methods.get("fedmd")(methods.get("fedmd").Params(), spec)
    fedavg = methods.get("fedavg")(methods.get("fedavg").Params(), alike)
    payloads = [LOGITS.to_bytes(), Payload(w=torch.zeros(2), n=torch.ones(3, dtype=torch.int64)).to_bytes()]

    def reply(data: bytes) -> None:
        unpack_reply(Envelope.read(data.decode(errors="surrogateescape"), payloads))

    def read_payload(data: bytes) -> None:
        payload = Payload.from_bytes(data)
        check(payload, {"logits": "B C", "loss": "scalar"}, {"B": 4, "C": 3})
        assert bool(payload["logits"].isfinite().all())

    def request(method: Method, data: bytes) -> None:
        envelope = Envelope.read(data.decode(errors="surrogateescape"), payloads)
        check_request(envelope.header)
        unpack_spec(envelope.header["plan"]["task"])
        [Work.unpack(envelope, item, method) for item in envelope.header["work"]]

    def read_compressed(data: bytes) -> None:
        payload = read_wire(data, 10**6, check=lambda entries: check(entries, COMPRESSED, SIZES, finite=False))
        check(payload, COMPRESSED, SIZES, finite=False)  # what is accepted has the declared shapes

    transport = GridTransport(None, {1: "a"}, ("a", "b"), {}, 1.0, 10**6)  # type: ignore[arg-type]

    def site_info(data: bytes) -> None:
        transport._register(1, Envelope.read(data.decode(errors="surrogateescape"), []))
        assert transport.site_info["a"].name == "a"

    deferred = {3: DeferredReport({"local_loss": 0.5}), 4: DeferredReport()}
    replies = [pack_reply([LOGITS, LOGITS], deferred, {"local": 2.0}, {"shares": [1]}), pack_reply([], {}, {})]
    refused = (MessageError,)
    yield Target("reply", [text(r.header) for r in replies], reply, refused, 60)
    yield Target("payload", payloads[:1], read_payload, (PayloadError,), 60, repair=_fix_length)
    yield Target("compressed payload", _compressed(), read_compressed, (PayloadError,), 40, repair=_fix_header)
    batch = PublicBatch(0, 0, 0, 0, 8)
    share = Exchange(fedmd.share, (batch,), received=[{0: LOGITS}], dims={"Q": 7})
    download = Step(fedavg.download, received={0: LOGITS})
    asked = _request(fedmd, spec, [Step(fedmd.local_update), share], None)
    yield Target("request", [text(asked)], partial(request, fedmd), refused, 8)
    asked = _request(fedavg, alike, [download, Step(fedavg.local_update)], 0)
    yield Target("request with weights", [text(asked)], partial(request, fedavg), refused, 2)
    yield Target("site information", [text(_site_info())], site_info, refused, 40)


COMPRESSED = {"similarity": "B B-1", "features": "B D"}
SIZES = {"B": 24, "D": 40}


def _compressed() -> list[bytes]:
    features = torch.randn(24, 40)
    similarity = features @ features.T
    payload = Payload(similarity=off_diagonal(similarity + similarity.T), features=features)
    chains = ("int8+zstd", "topk:0.1+fp16+zstd", "topk:0.02", "lowrank:2+int8", "zstd")
    return [
        compressed(payload, chain, lambda name, tensor: Traits(name == "similarity", sparse=True), {}).to_bytes()
        for chain in (parse(text).up for text in chains)
        if chain is not None
    ]


def _fix_header(data: bytes) -> bytes:
    """As `_fix_length`, where the bytes after the header may hold anything."""
    end = data.find(b"]}}") + 3
    return (end - 8).to_bytes(8, "little") + data[8:] if end > 8 else data


def _request(method: Method, spec: FederationSpec, actions: list[Action], weights: int | None) -> dict[str, Any]:
    envelope = Envelope({})
    work = [{"round": 1, **pack_action(envelope, action, 0)} for action in actions]
    plan = {"method": method.name, "settings": method.params.model_dump(mode="json"), "task": pack_spec(spec)}
    return {
        "run": "0123456789abcdef", "client": 0, "serial": 5, "base": 3, "keep": [2, 3],
        "plan": {**plan, "public": {"name": "photos", "digest": "0" * 64}},
        "work": [*work, {"round": 1, "evaluate": weights}],
    }  # fmt: skip


def _site_info() -> dict[str, Any]:
    return {
        "name": "a", "model": "mlp", "train": 48, "test": 32, "classes": ["cat", "dog"],
        "public": {"digest": "0123" * 16, "size": 40}, "versions": {"torch": "2.11.0"}, "free": 2**30,
        "inputs": {"modality": "image", "shape": [3, 32, 32], "vocabulary": 0, "tensors": []},
    }  # fmt: skip


def text(header: Any) -> bytes:
    return json.dumps(header).encode()


def _fix_length(data: bytes) -> bytes:
    """The length of the header of a safetensors file, right again after a change."""
    end = data.rfind(b"}") + 1
    return (end - 8).to_bytes(8, "little") + data[8:] if end > 8 else data


# -- settings ----------------------------------------------------------------------------------------------------------


def _settings(folder: Path) -> Iterator[Target]:
    sites = [{"name": "hospital-a", "key": "keys/a.pub"}, {"name": "b", "key": "b.pub", "model": "googlenet"}]
    federation = {
        "method": "fccl+", "public": "photos", "rounds": 20, "seed": 0, "address": "0.0.0.0:8000", "deadline": 1800.0,
        "quorum": 0.5, "out": "run", "secure": False, "settings": {"sync": "epoch", "local_epochs": 5}, "sites": sites,
    }  # fmt: skip
    experiment = {
        "method": "fccl+", "scenario": "digits-lite", "rounds": 2, "seed": 3, "models": ["mlp", "resnet10"],
        "profile": "fixed", "device": "cpu", "settings": {"local_epochs": 1, "public_size": 64, "omega": 3.0},
    }  # fmt: skip

    def read_toml_of(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
        path = folder / name

        def parse(data: bytes) -> None:
            path.write_bytes(data)
            read(path)

        return parse

    toml = [(tomli_w.dumps(federation)).encode()]
    yield Target(
        "federation.toml", toml, read_toml_of("federation.toml", lambda p: read_federation(p).plan()), (UsageError,), 6
    )
    toml = [tomli_w.dumps(experiment).encode()]
    yield Target(
        "experiment.toml", toml, read_toml_of("experiment.toml", lambda p: make_plan(read_experiment(p))),
        (UsageError,), 5,
    )  # fmt: skip


# -- state on disk -----------------------------------------------------------------------------------------------------


def _state(folder: Path) -> Iterator[Target]:
    yield _checkpoint(folder / "checkpoint")
    yield _ledger(folder / "privacy-budget.jsonl")
    yield _events(folder / "run")


def _checkpoint(folder: Path) -> Target:
    checkpoint.save(folder, 0, [("server", {}), ("client-0", {"w": torch.ones(3)})], {"round": 0})
    checkpoint.save(folder, 1, [("server", {}), ("client-0", {"w": torch.ones(3)})], {"round": 1})
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    numbered = [bytes([n]) + content for n, content in enumerate(files.values())]
    draw = random.Random(0)

    def parse(data: bytes) -> None:
        path = list(files)[data[0] % len(files)] if data else draw.choice(list(files))
        path.write_bytes(data[1:])
        try:
            if found := checkpoint.newest_intact(folder):
                facts, tensors = checkpoint.facts(found[0]), checkpoint.load(found[0], "client-0")
                assert facts["round"] in (0, 1)
                assert tensors["w"].tolist() == [1.0] * 3
        finally:
            path.write_bytes(files[path])

    return Target("checkpoint", numbered, parse, (UsageError,), 2)


def _ledger(path: Path) -> Target:
    budget = PrivacyBudget(path, 1e-5)
    for number in range(3):
        budget._chain.append(run="r", round=number, release=vars(Release(1.1, 0.1, 5)), epsilon=1.0)

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        for release in budget.releases():
            assert release.noise >= 0
            assert 0 <= release.rate <= 1
            assert isinstance(release.steps, int)

    return Target("privacy budget", [path.read_bytes()], parse, (UsageError,), 10)


def _events(folder: Path) -> Target:
    clients = [{"name": c.name, "model": c.model, "train": 4, "test": 4, "domain": "own"} for c in CLIENTS]
    event = {
        "round": 0, "clients": ["a", "b"], "accuracy": [[50.0], [60.0]], "intra_avg": 55.0, "inter_avg": None,
        "losses": {"a": {"local": 0.5}}, "measures": {}, "left_out": [{"client": "b", "exchange": "share", "why": "x"}],
        "bytes_up": 10, "bytes_down": 10, "messages": 2, "seconds": {"total": 1.0},
    }  # fmt: skip
    folder.mkdir()
    task = {"method": "fedmd", "clients": clients, "tests": ["own"], "rounds": 2, "seed": 0, "scenario": "s"}
    (folder / "task.json").write_text(json.dumps(task))

    def parse(data: bytes) -> None:
        (folder / "events.jsonl").write_bytes(data)
        read_run(folder)

    return Target("events.jsonl", [text(event) + b"\n" + text({**event, "round": 1}) + b"\n"], parse, (), 6)


# -- keys --------------------------------------------------------------------------------------------------------------


def _keys(folder: Path) -> Iterator[Target]:
    make_server(folder / "keys", ["127.0.0.1"])
    _, public = make_site(folder / "keys", "hospital-a")
    signer = Signer.read(folder / "keys/server.crt", folder / "keys/server.key")
    message = SignedMessage(7, 1, "train", 0, 60.0, "text", [])
    signature = signer.sign(message)
    path = folder / "key"

    def read(reader: Callable[[Path], object]) -> Callable[[bytes], None]:
        def parse(data: bytes) -> None:
            path.write_bytes(data)
            reader(path)

        return parse

    def certificate(data: bytes) -> None:
        verify_signature(folder / "keys/ca.crt", data, signature, message)
        assert x509.load_pem_x509_certificate(data) == x509.load_pem_x509_certificate(signer.certificate)

    pem = (folder / "keys/server.key").read_bytes()
    yield Target("public key", [public.read_bytes()], read(read_public), (UsageError,), 8)
    yield Target("private key", [pem], read(lambda p: Signer.read(folder / "keys/server.crt", p)), (UsageError,), 6)
    yield Target("certificate", [signer.certificate], certificate, (MessageError,), 6)


# -- data --------------------------------------------------------------------------------------------------------------


def _data(folder: Path) -> Iterator[Target]:
    npz, array, table = io.BytesIO(), io.BytesIO(), folder / "table.csv"
    np.savez(npz, x=np.zeros((2, 2, 2, 3), np.uint8), y=np.arange(2))
    np.save(array, np.arange(4))
    path = folder / "data.npz"

    def read_npz(data: bytes) -> None:
        path.write_bytes(data)
        read_headers(path)
        read_arrays(path)

    def read_npy(data: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
        read_headers(path)
        read_arrays(path)

    def read_csv(data: bytes) -> None:
        table.write_bytes(data)
        read_table(table)

    csv = b"age;sex;label\n61;m;yes\n45.5;f;no\n?;f;no\n"
    yield Target("npz", [npz.getvalue()], read_npz, (UsageError,), 4)
    yield Target("npy", [array.getvalue()], read_npy, (UsageError,), 2)
    yield Target("csv", [csv, csv.replace(b";", b",")], read_csv, (UsageError,), 1)
