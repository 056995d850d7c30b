"""Compression in a run: the same numbers on every engine, counted bytes, exact resume, and secure sums that refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tests import helpers
from tests.deploy.in_process import run_on_sites, stop_before
from tests.federation_harness import FederationHarness
from tests.helpers import Stop, StopAfter, assert_same, events, run_folder, states

from fedchoir import Experiment, run
from fedchoir.core.wire import MEMORY
from fedchoir.utils.errors import UsageError

numbers = partial(helpers.numbers, without=("seconds", "messages"))
WIDE = {"public_batch": 40, "local_epochs": 1}  # similarities of 40 samples are large enough to be compressed
CASES = [
    ("fccl+", "topk:0.1+int8+zstd"), ("fccl+", "lowrank:4+fp16"), ("fedavg", "int8+zstd"), ("fednova", "topk:0.1+int8"),
    ("scaffold", "up=topk:0.2+fp16,down=int8"), ("fedproto", "fp16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "compress"), CASES)
def test_all_engines_give_the_same_numbers(
    name: str, compress: str, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    options = {"rounds": 2, "compress": compress, "settings": WIDE}
    local, flower = small(name, "local", **options), small(name, "flower", **options)
    run(local)
    run_on_sites(flower, tmp_path / "sites")
    assert numbers(local) == numbers(flower)


@pytest.mark.parametrize(("name", "compress"), [CASES[3]])
def test_processes_give_the_same_numbers(name: str, compress: str, small: Callable[..., Experiment]) -> None:
    options = {"rounds": 2, "compress": compress, "settings": WIDE}
    local, distributed = small(name, "local", **options), small(name, "two", devices=("cpu", "cpu"), **options)
    run(local), run(distributed)
    assert_same(local, distributed)


@pytest.mark.parametrize(("name", "compress"), [*CASES[2:5], ("fccl+", "int8")])
def test_a_stopped_run_resumes_bit_by_bit(name: str, compress: str, small: Callable[..., Experiment]) -> None:
    """Without the errors of both senders in the checkpoint, the rounds after it would be others."""
    options = {"rounds": 3, "compress": compress, "settings": WIDE}
    straight, stopped = small(name, "straight", **options), small(name, "stopped", **options)
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(1)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


def test_the_errors_of_both_senders_are_in_the_checkpoint(small: Callable[..., Experiment]) -> None:
    experiment = small("fednova", rounds=2, compress="topk:0.1+int8", settings=WIDE)
    run(experiment)
    saved = states(experiment)
    kept = {n: t for n, t in saved["client-00000"].items() if n.startswith(f"memory/{MEMORY}/upload_update/update/")}
    assert kept
    assert max(float(t.abs().max()) for t in kept.values()) > 0
    assert any(name.startswith("download//weights/") for name in saved["downlink"])


def test_a_server_of_sites_resumes_to_the_same_numbers(small: Callable[..., Experiment], tmp_path: Path) -> None:
    options = {"compress": "topk:0.1+int8+zstd", "settings": WIDE}
    straight, stopped = small("fednova", "straight", **options), small("fednova", "stopped", **options)
    run_on_sites(straight, tmp_path / "one")
    with pytest.raises(Stop):
        run_on_sites(stopped, tmp_path / "two", change=stop_before(5))
    run_on_sites(stopped, tmp_path / "two", resume=True)
    assert numbers(straight) == numbers(stopped)


def test_the_counted_bytes_are_those_that_travel(small: Callable[..., Experiment], tmp_path: Path) -> None:
    """fccl+, 3 clients, 2 rounds of one batch of 40: logits 40×10 are 4 classes here, similarities 40×39."""
    plain, half = small("fccl+", "plain", rounds=2, settings=WIDE), small("fccl+", "fp16", rounds=2, settings=WIDE)
    run(plain)
    result = run(half.model_copy(update={"compress": "fp16"}))
    logits, similarity = 40 * 4, 40 * 39
    assert events(plain)[0]["bytes_up"] == 3 * 4 * (logits + similarity)
    each = 4 * logits + 4 + 2 * similarity // 2  # 160 logits are too few to be compressed; one half of the similarities
    assert [event["bytes_up"] for event in events(half)] == [3 * each] * 2
    assert [event["bytes_down"] for event in events(half)] == [3 * each] * 2
    assert result.model_dump()["compress"] == "fp16"


@pytest.mark.parametrize(("compress", "smaller"), [("up=int8", ("bytes_up",)), ("down=int8", ("bytes_down",))])
def test_one_direction_alone(compress: str, smaller: tuple[str, ...], small: Callable[..., Experiment]) -> None:
    plain, one = small("fedavg", "plain", rounds=2), small("fedavg", "one", rounds=2, compress=compress)
    run(plain), run(one)
    for name in ("bytes_up", "bytes_down"):
        before, after = events(plain)[1][name], events(one)[1][name]
        assert (after < before / 3) if name in smaller else after == before


def test_the_aggregate_is_that_of_the_receivers_numbers(small: Callable[..., Experiment]) -> None:
    """FedAvg with int8 up: the global weights are the mean of rounded weights, not of the clients' own."""
    harness = FederationHarness(small("fedavg", rounds=2, compress="up=int8", settings={"weighting": "uniform"}))
    harness.run_rounds()
    for name, mean in harness.method.server.items():
        key = name.removeprefix("weights/")
        own = torch.stack([client.model.state_dict()[key].double() for client in harness.clients])
        error, step = float((mean - own.mean(0)).abs().max()), float(own.max() - own.min()) / 255
        compressed = mean.dim() > 1 and mean.numel() >= 256
        assert (0 < error < step / 2 + 1e-6) if compressed else error < 1e-6


def test_a_run_is_not_resumed_with_another_compression(small: Callable[..., Experiment]) -> None:
    experiment = small("fccl+", rounds=2, compress="fp16", settings=WIDE)
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(0)])
    with pytest.raises(UsageError, match="compress was 'fp16' and is now 'int8'"):
        run(experiment.model_copy(update={"compress": "int8"}), resume=True)


@pytest.mark.parametrize(
    ("compress", "why"),
    [
        ("int8+zstd", "codes of different scales cannot be summed"), ("fp16", "save nothing"),
        ("topk:0.1", "clients leave out different numbers"), ("lowrank:4+fp16", "a sum of factors"),
        ("up=zstd", "do not become smaller"),
    ],
)  # fmt: skip
def test_secure_sums_refuse_what_they_cannot_sum(compress: str, why: str, small: Callable[..., Experiment]) -> None:
    experiment = small("fedmd", secure=True, compress=compress)
    with pytest.raises(UsageError, match=f"secure = true is not possible with fedmd: compress = .*{why}") as error:
        run(experiment)
    assert "\n" not in str(error.value)
    assert not (run_folder(experiment) / "events.jsonl").exists()


def test_what_the_server_sends_may_be_compressed_with_secure_sums(small: Callable[..., Experiment]) -> None:
    plain = small("fedmd", "plain", rounds=2, secure=True, settings={**WIDE, "public_batch": 40})
    down = small("fedavg", "down", rounds=2, secure=True, compress="down=int8")
    run(plain), run(down)
    assert [event["left_out"] for event in events(down)] == [[], []]


def test_compression_is_post_processing_of_private_training(small: Callable[..., Experiment]) -> None:
    settings = {"dp_noise": 1.0, "local_epochs": 1, "local_batch": 16}
    plain, packed = (
        small("fedavg", name, rounds=1, compress=compress, settings=settings, models=("mlp",))
        for name, compress in (("plain", None), ("packed", "int8"))
    )
    run(plain), run(packed)
    assert events(plain)[0]["privacy"] == events(packed)[0]["privacy"]
    assert events(packed)[0]["bytes_up"] < events(plain)[0]["bytes_up"] / 3


def test_a_hostile_client_is_left_out_as_without_compression(small: Callable[..., Experiment]) -> None:
    for compress in ("int8+zstd", "topk:0.1+int8", "lowrank:4+fp16"):
        experiment = small(
            "fccl+", compress.partition(":")[0], rounds=1, compress=compress,
            settings={**WIDE, "attack": "nan", "attackers": 1},
        )  # fmt: skip
        run(experiment)
        assert {out["why"] for out in events(experiment)[0]["left_out"]} == {"logits is not finite"}
