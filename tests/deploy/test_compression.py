"""Compression at real sites: it is part of what was agreed, it is announced, and hostile bytes are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import zstandard
from tests.deploy.in_process import InProcessTransport, run_on_sites
from tests.deploy.test_inspection import described, federation
from tests.helpers import events, run_folder

from fedchoir import Experiment, run
from fedchoir.compression.chain import parse
from fedchoir.compression.wire import Traits, compressed
from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.audit import read_audit
from fedchoir.deploy.inspection import open_method, sent_each_round
from fedchoir.engines.messages import Envelope, MessageError, pack_reply, unpack_reply
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.payload import Payload, metadata
from fedchoir.utils.errors import UsageError

WIDE = {"public_batch": 40, "local_epochs": 1}


# -- what is agreed ----------------------------------------------------------------------------------------------------


def test_a_server_cannot_change_the_agreed_compression(small: Callable[..., Experiment]) -> None:
    method, _, _ = prepare(make_plan(small("fedavg", rounds=1, compress="int8+zstd")))
    spec = method.spec
    names = tuple(client.name for client in spec.clients)
    agreed = Agreement("fedavg", {}, None, 1, 0, False, names, classes=spec.classes, compress="int8+zstd")
    agreed.check_spec(spec)
    for other in ("", "int8", "topk:0.01+int8+zstd"):
        with pytest.raises(MessageError, match="refused: the server gives compress = "):
            agreed.check_spec(replace(spec, compress=other))


def test_the_file_of_a_federation_has_the_compression() -> None:
    assert federation(compress="int8+zstd").plan().experiment.compress == "int8+zstd"
    assert Agreement.of(federation(compress="fp16")).compress == "fp16"
    with pytest.raises(UsageError, match="compress = 'gzip' is not possible: it should be"):
        federation(compress="gzip").plan()
    with pytest.raises(UsageError, match="secure = true is not possible with fedavg: compress = 'int8'"):
        federation(compress="int8", secure=True).plan()


def test_a_site_refuses_payloads_of_another_chain(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """The server names the agreed chain and sends payloads as they are: each could be 40 times as large."""

    def dishonest(transport: InProcessTransport) -> None:
        original = transport.workers[0].handle

        def handle(text: str, blobs: list[bytes]) -> Envelope:
            plain = [Payload(dict(Envelope({}, blobs).get(n))).to_bytes() for n in range(len(blobs))]
            return original(text, plain)

        transport.workers[0].handle = handle  # type: ignore[method-assign]

    experiment = small("fccl+", rounds=1, compress="int8+zstd", settings=WIDE)
    _, transport = run_on_sites(experiment, tmp_path / "sites", change=dishonest)
    lines = [line["text"] for line in read_audit(transport.workers[0].folder / "audit.jsonl")]
    assert any("the agreed chain is 'int8+zstd'" in line and "refused" in line for line in lines)


# -- what is announced -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("fedavg", "int8"), ("fccl+", "topk:0.1+fp16"), ("fccl+", "lowrank:4"), ("fednova", "topk:0.1+int8"),
        ("fedproto", "down=int8"),
    ],
)  # fmt: skip
def test_the_announced_bytes_are_those_of_a_run(name: str, compress: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=2, compress=compress, settings=WIDE)
    run(experiment)
    method, _, _ = prepare(make_plan(experiment))
    announced = [sum(s.bytes for s in each) for each in sent_each_round(method)]
    assert [count * len(method.spec.clients) for count in announced] == [e["bytes_up"] for e in events(experiment)]
    assert not any(sent.at_most for each in sent_each_round(method) for sent in each)


@pytest.mark.parametrize(("name", "compress"), [("fedkd", None), ("fedkd", "int8"), ("fccl+", "int8+zstd")])
def test_sizes_that_depend_on_values_are_announced_as_the_most(
    name: str, compress: str | None, small: Callable[..., Experiment]
) -> None:
    experiment = small(name, rounds=2, compress=compress, settings=WIDE)
    run(experiment)
    method, _, _ = prepare(make_plan(experiment))
    announced = list(sent_each_round(method))
    for each, event in zip(announced, events(experiment), strict=True):
        assert 0 < event["bytes_up"] <= len(method.spec.clients) * sum(sent.bytes for sent in each)
        assert all(sent.at_most for sent in each)


def test_fedkd_announces_every_matrix_whole() -> None:
    """It shows one size of the whole update: no factor of rank one, which would be far too small."""
    text = described(method="fedkd", settings={"image_size": 16})
    (line,) = {line for line in text.splitlines() if "upload_mentee" in line}
    assert "update, " in line
    assert "whose sizes depend on the values, at most" in line
    method: Any = open_method(federation(method="fedkd", settings={"image_size": 16}), "mlp")
    whole = sum(t.nbytes for t in method.mentee_state.values())
    assert {sent.bytes for each in sent_each_round(method) for sent in each} == {whole}


def test_a_site_reads_what_travels() -> None:
    text = described(compress="up=int8+zstd,down=fp16")
    assert "compressed with int8+zstd" in text
    assert "what the server sends is compressed with fp16" in text
    assert "in the whole run: at most" in text
    assert "compressed" not in described()


def test_the_audit_log_has_the_bytes_that_leave(small: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = small("fccl+", rounds=1, compress="int8+zstd", settings=WIDE)
    _, transport = run_on_sites(experiment, tmp_path / "sites")
    lines = [line["text"] for line in read_audit(transport.workers[0].folder / "audit.jsonl")]
    assert any("compressed to" in line for line in lines if "sends similarity" in line or "sends logits" in line)


# -- hostile replies ---------------------------------------------------------------------------------------------------


Forge = Callable[[Payload], bytes]


def forged(payload: Payload, content: bytes | None = None, **entries: Any) -> bytes:
    raw = payload.to_bytes()
    layout = json.loads(metadata(raw)["compressed"])
    layout["entries"] |= entries
    kept = safetensors.torch.load(raw)["content"]
    layout["packed"] |= content is not None
    tensor = kept if content is None else torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return safetensors.torch.save({"content": tensor}, metadata={"compressed": json.dumps(layout)})


BOMB = zstandard.ZstdCompressor(level=1).compress(bytes(200 * 2**20))


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda payload: forged(payload, BOMB), "a zstd frame of 209715200 bytes"),
        (lambda payload: forged(payload, similarity=["float32", [4000, 3999], True, True]), "similarity has shape"),
        (lambda payload: forged(payload, similarity=["float32", [2**39, 2**39], True, True]), "unpacked it would have"),
        (lambda payload: forged(payload, extra=["float32", [10, 10], False, False]), "extra was not declared"),
        (lambda payload: Payload(dict(payload)).to_bytes(), "the agreed chain is 'int8\\+zstd'"),
        (lambda payload: payload.to_bytes()[:-40], "not a payload"),
    ],
    ids=["bomb", "shape", "huge", "extra", "plain", "truncated"],
)  # fmt: skip
def test_a_hostile_reply_is_left_out_in_one_line(
    forge: Forge, why: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    def hostile(transport: InProcessTransport) -> None:
        original = transport.workers[1].handle

        def handle(text: str, blobs: list[bytes]) -> Envelope:
            reply = original(text, blobs)
            payloads, deferred, seconds = unpack_reply(reply)
            packed = pack_reply(payloads, deferred, seconds)
            return Envelope(packed.header, [forge(payload) for payload in payloads])

        transport.workers[1].handle = handle  # type: ignore[method-assign]

    experiment = small("fccl+", rounds=1, compress="int8+zstd", settings=WIDE)
    run_on_sites(experiment, tmp_path / "sites", change=hostile)
    (out,) = events(run_folder(experiment))[0]["left_out"]
    assert out["client"] == make_names(experiment)[1]
    assert re.search(why, out["why"])
    assert "\n" not in out["why"]


def make_names(experiment: Experiment) -> list[str]:
    return [client.name for client in prepare(make_plan(experiment))[0].spec.clients]


def test_compressed_payloads_share_the_limit_of_a_message() -> None:
    chain = parse("int8+zstd").up
    assert chain is not None
    payload = compressed(Payload(w=torch.zeros(300, 100)), chain, lambda name, tensor: Traits(), {})
    small_enough = Envelope.read("{}", [payload.to_bytes()] * 3, limit=250_000)
    first = small_enough.get(0)
    assert small_enough.get(0) is first  # named twice, it is unpacked once
    small_enough.get(1)
    with pytest.raises(MessageError, match="unpacked it would have 120000 bytes, and 10000 are allowed"):
        small_enough.get(2)
