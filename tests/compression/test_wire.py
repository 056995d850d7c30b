"""Compressed payloads: both sides see the same numbers, errors are made up for, and hostile bytes cost nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedchoir.compression import entropy
from fedchoir.compression.chain import parse
from fedchoir.compression.wire import Residuals, Traits, compressed, read_payload, sizes
from fedchoir.losses import instance_similarity
from fedchoir.payload import Payload, PayloadError, check, metadata

LIMIT = 10**6
TRAITS = {"similarity": Traits(symmetric=True, sparse=True), "logits": Traits(sparse=True)}
CHAINS = (
    "fp16",
    "int8",
    "zstd",
    "int8+zstd",
    "topk:0.1",
    "topk:0.02+int8+zstd",
    "lowrank:4+fp16",
    "lowrank:4+int8+zstd",
)


def traits(name: str, tensor: Tensor) -> Traits:
    return TRAITS.get(name, Traits())


def send(payload: Payload, text: str, about: Traits | None = None, residuals: Residuals | None = None) -> Payload:
    chain = parse(text).up
    assert chain is not None
    known = residuals if residuals is not None else {}
    return compressed(payload, chain, traits if about is None else lambda name, tensor: about, known)


def example(seed: int = 0, size: int = 40) -> Payload:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(size, 12, generator=draw)
    return Payload(
        logits=torch.randn(size, 10, generator=draw), similarity=instance_similarity(features),
        owned=torch.rand(10, generator=draw) < 0.5, counts=torch.arange(10), mask=torch.ones(size),
        **{"weights/conv": torch.randn(8, 4, 3, 3, generator=draw)}, scalars={"loss": 0.25},
    )  # fmt: skip


@pytest.mark.parametrize("text", CHAINS)
def test_the_receiver_has_the_numbers_of_the_sender_bit_by_bit(text: str) -> None:
    payload = example()
    sent = send(payload, text)
    received = read_payload(sent.to_bytes(), LIMIT, chain=text)
    assert set(received) == set(payload)
    for name, tensor in payload.items():
        assert torch.equal(sent[name], received[name])
        assert received[name].shape == tensor.shape
        assert received[name].dtype == tensor.dtype
    assert received.scalars == payload.scalars
    assert received.nbytes == sent.nbytes < payload.nbytes
    for name in ("owned", "counts", "mask"):  # masks and counts are not rounded
        assert torch.equal(received[name], payload[name])


def test_equal_payloads_are_equal_bytes() -> None:
    """A site that is asked again compares the bytes, and a resumed server has its state dicts in another order."""
    payload = example()
    turned = Payload(dict(reversed(list(payload.items()))), scalars=payload.scalars)
    assert len({send(p, "int8+zstd").to_bytes() for p in [payload, turned] * 10}) == 1


def test_zstd_where_the_chain_has_none_is_refused() -> None:
    content, layout = taken_apart(send(example(), "int8+zstd").to_bytes())
    with pytest.raises(PayloadError, match="its chain does not have"):
        read_payload(put_together(content, {**layout, "chain": "int8"}), LIMIT)


@pytest.mark.parametrize("text", CHAINS)
def test_the_stated_sizes_are_those_that_travel(text: str) -> None:
    payload = example()
    chain = parse(text).up
    assert chain is not None
    stated = sum(sizes(payload, chain, traits).values()) + 8
    assert send(payload, text).nbytes <= stated if chain.zstd else send(payload, text).nbytes == stated


def test_zstd_alone_loses_nothing_and_never_adds_bytes() -> None:
    noise = Payload(noise=torch.randint(0, 2**31, (64, 64), dtype=torch.int32))
    sent = send(noise, "zstd")
    assert sent.nbytes == noise.nbytes
    assert torch.equal(read_payload(sent.to_bytes(), LIMIT, chain="zstd")["noise"], noise["noise"])


@given(st.integers(2, 60), st.sampled_from(CHAINS), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_payloads_of_any_size(size: int, text: str, seed: int) -> None:
    sent = send(example(seed, size), text)
    received = read_payload(sent.to_bytes(), LIMIT)
    assert all(torch.equal(sent[name], received[name]) for name in sent)


# -- error feedback ----------------------------------------------------------------------------------------------------


def rounds(text: str, about: Traits, inputs: list[Tensor]) -> tuple[list[Tensor], Residuals]:
    residuals: Residuals = {}
    return [send(Payload(w=value), text, about, residuals)["w"] for value in inputs], residuals


def test_the_errors_of_int8_do_not_add_up() -> None:
    """The same weights in every round: their mean over the rounds becomes exact, without feedback it never does."""
    weights = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    with_feedback, _ = rounds("int8", Traits(repeats=True), [weights] * 50)
    without, residuals = rounds("int8", Traits(), [weights] * 50)
    step = float(weights.max() - weights.min()) / 255
    assert float((torch.stack(with_feedback).mean(0) - weights).abs().max()) < step / 20
    assert float((torch.stack(without).mean(0) - weights).abs().max()) > step / 3
    assert residuals == {}


@pytest.mark.parametrize("text", ["topk:0.05", "topk:0.05+int8", "lowrank:2"])
def test_what_is_left_out_of_changes_is_sent_later(text: str) -> None:
    """All that was sent and the residual are together all that should have been."""
    draw = torch.Generator().manual_seed(1)
    changes = [torch.randn(48, 48, generator=draw) for _ in range(20)]
    sent, residuals = rounds(text, Traits(sparse=True, repeats=True, adds_up=True), changes)
    total = torch.stack(changes).double().sum(0)
    arrived = torch.stack(sent).double().sum(0) + residuals["w"].double().view(48, 48)
    torch.testing.assert_close(arrived, total, rtol=0, atol=1e-4)


def test_values_that_do_not_add_up_are_not_sent_twice() -> None:
    """A prototype that top-k leaves out for ten rounds must not arrive ten times as large."""
    values = torch.rand(48, 48, generator=torch.Generator().manual_seed(2)) + 1
    sent, residuals = rounds("topk:0.1", Traits(sparse=True, repeats=True), [values] * 10)
    assert max(float(t.max()) for t in sent) <= float(values.max())
    assert residuals == {}


def test_feedback_starts_again_when_an_entry_changes_its_shape() -> None:
    residuals: Residuals = {}
    about = Traits(repeats=True)
    for size in (32, 32, 40):
        value = torch.randn(size, 32)
        send(Payload(w=value), "int8", about, residuals)
        assert residuals["w"].numel() == value.numel()
    torch.testing.assert_close(send(Payload(w=value), "int8", about, {})["w"], value, rtol=0, atol=0.05)


def test_numbers_that_are_not_finite_do_not_stay_in_the_feedback() -> None:
    residuals: Residuals = {}
    good, bad = torch.randn(32, 32), torch.full((32, 32), float("nan"))
    assert not bool(send(Payload(w=bad), "int8", Traits(repeats=True), residuals)["w"].isfinite().any())
    assert bool(send(Payload(w=good), "int8", Traits(repeats=True), residuals)["w"].isfinite().all())


# -- hostile bytes -----------------------------------------------------------------------------------------------------


DECLARED = {
    "logits": "B C", "similarity": "B B-1", "owned": "C:bool", "counts": "C:int64", "mask": "B",
    "weights/conv": "8 4 3 3", "loss": "scalar",
}  # fmt: skip


def declared(entries: Payload) -> None:
    assert all(tensor.is_meta for tensor in entries.values())  # nothing is allocated for this check
    check(entries, DECLARED, {"B": 40, "C": 10}, finite=False)


def read(raw: bytes, limit: int = LIMIT) -> Payload:
    return read_payload(raw, limit, chain="int8+zstd", check=declared)


Layout = dict[str, Any]


def taken_apart(raw: bytes) -> tuple[bytes, Layout]:
    return safetensors.torch.load(raw)["content"].numpy().tobytes(), json.loads(metadata(raw)["compressed"])


def put_together(content: bytes, layout: Layout) -> bytes:
    tensor = torch.tensor(list(content), dtype=torch.uint8)
    return safetensors.torch.save({"content": tensor}, metadata={"compressed": json.dumps(layout)})


def changed(edit: Callable[[bytes, Layout], tuple[bytes, Layout]]) -> bytes:
    """An honest payload, changed by a hostile sender."""
    return put_together(*edit(*taken_apart(send(example(), "int8+zstd").to_bytes())))


def with_entries(**entries: Any) -> Callable[[bytes, Layout], tuple[bytes, Layout]]:
    return lambda content, layout: (content, {**layout, "entries": {**layout["entries"], **entries}})


def bomb(size: int, *, known: bool = True) -> bytes:
    """A real frame of zeros: a few hundred bytes that unpack to hundreds of megabytes."""
    packer = zstandard.ZstdCompressor(level=1, write_content_size=known)
    if known:
        return packer.compress(bytes(size))
    stream = packer.compressobj()
    return b"".join(stream.compress(bytes(2**20)) for _ in range(size // 2**20)) + stream.flush()


BOMB = 300 * 2**20


def test_an_honest_payload_passes() -> None:
    assert read(changed(lambda content, header: (content, header))).nbytes < example().nbytes


@pytest.mark.parametrize("known", [True, False])
def test_a_bomb_is_refused_without_unpacking_it(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = bomb(BOMB, known=known)
    assert len(frame) < 100_000
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda **_: pytest.fail("it was unpacked"))
    with pytest.raises(PayloadError, match="a zstd frame of") as error:
        read(changed(lambda content, header: (frame, header)))
    assert "\n" not in str(error.value)


def test_a_bomb_that_lies_about_its_size_is_not_unpacked_beyond_it() -> None:
    """The header of the frame states the declared size, its blocks hold 300 MB."""
    content, _ = taken_apart(send(example(), "int8+zstd").to_bytes())
    size = zstandard.get_frame_parameters(content).content_size
    inside = bomb(BOMB)
    honest = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(size))
    header_of = zstandard.frame_header_size
    lying = honest[: header_of(honest)] + inside[header_of(inside) :]
    assert zstandard.get_frame_parameters(lying).content_size == size
    with pytest.raises(PayloadError, match="not a zstd frame"):
        read(changed(lambda content, header: (lying, header)))


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 50, -1])
def test_truncated_frames(cut: int) -> None:
    with pytest.raises(PayloadError):
        read(changed(lambda content, header: (content[:cut], header)))


def test_corrupted_frames_are_refused_or_have_the_declared_shapes() -> None:
    content, _ = taken_apart(send(example(), "int8+zstd").to_bytes())
    refused = 0
    for place in [*range(0, 40), *range(40, len(content), 101)]:
        broken = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
        try:
            found = read(changed(lambda _, header, broken=broken: (broken, header)))
        except PayloadError:
            refused += 1
        else:
            assert {name: t.shape for name, t in found.items()} == {n: t.shape for n, t in example().items()}
    assert refused


def test_bytes_after_the_frame() -> None:
    with pytest.raises(PayloadError, match="not a zstd frame"):
        read(changed(lambda content, header: (content + b"more", header)))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"logits": ["float32", [40, 11], False, True]}, "logits has shape"),
        ({"extra": ["float32", [1], False, False]}, "extra was not declared"),
        ({"logits": ["float16", [40, 10], False, True]}, "logits is torch.float16"),
        ({"logits": ["float32", [2**39, 2**39], False, True]}, "unpacked it would have"),
        ({"logits": ["float32", [10**7, 10], False, True]}, "unpacked it would have"),
        ({"logits": ["float32", [-1, 10], False, True]}, "malformed"),
        ({"logits": ["object", [40, 10], False, True]}, "malformed"),
        ({"logits": ["float32", [40, 10], True, True]}, "malformed"),  # no symmetric matrix
        ({"logits": "float32"}, "malformed"),
    ],
)  # fmt: skip
def test_entries_are_compared_with_the_declaration_before_anything_is_unpacked(
    entries: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropy, "unpack", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(PayloadError, match=why):
        read(changed(with_entries(**entries)))


def test_the_limit_counts_what_is_unpacked() -> None:
    raw = send(Payload(w=torch.zeros(1000, 100)), "int8+zstd").to_bytes()
    assert len(raw) < 10_000
    with pytest.raises(PayloadError, match="unpacked it would have 400000 bytes, and 100000 are allowed"):
        read_payload(raw, 100_000)


@pytest.mark.parametrize("text", ["", "fp16", "zstd", "int8", "topk:0.1+int8+zstd"])
def test_another_chain_than_the_agreed_one_is_refused(text: str) -> None:
    payload = example()
    raw = (send(payload, text) if text else payload).to_bytes()
    with pytest.raises(PayloadError, match="the agreed chain is 'int8\\+zstd'"):
        read(raw)


def test_a_compressed_payload_where_none_was_agreed() -> None:
    with pytest.raises(PayloadError, match="the agreed chain is 'none'"):
        read_payload(send(example(), "int8").to_bytes(), LIMIT, chain="")


def test_a_mask_that_keeps_another_number_is_refused() -> None:
    matrix = Payload(w=torch.randn(64, 64))
    about = Traits(sparse=True)
    content, layout = taken_apart(send(matrix, "topk:0.1", about).to_bytes())
    raw = put_together(b"\xff" * (64 * 64 // 8) + content[64 * 64 // 8 :], layout)
    with pytest.raises(PayloadError, match="a mask with 4096 numbers, and the chain keeps 448"):
        read_payload(raw, LIMIT)
