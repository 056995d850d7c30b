"""Fused training passes: which passes are fused, that the model stays the same, and the kernels against torch's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedchoir import Experiment, methods, run, runner
from fedchoir.engines import fused
from fedchoir.engines.depthwise import DepthwiseConv2d, _taps, is_depthwise
from fedchoir.engines.fused import FusedPass, Pass, fuse
from fedchoir.engines.lean import LinearExcitation, MeanPool, use_lean_layers
from fedchoir.engines.local import LocalEngine
from fedchoir.errors import UsageError
from fedchoir.federation.client import Client
from fedchoir.models import build


class Compiler:
    """In place of torch.compile: notes the sizes of the batches that went the fused way."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, both: Pass) -> Pass:
        def compiled(images: Tensor) -> tuple[Tensor, Tensor]:
            self.sizes.append(len(images))
            return both(images)

        return compiled


@pytest.fixture
def client(small: Callable[..., Experiment]) -> Client:
    plan = runner.experiments.plan(small("solo", models=("mobilenet_v2@0.25",)))
    scenario = runner.load(plan)
    method = methods.get("solo")(plan.params, runner.make_task(plan, scenario, None))
    return LocalEngine(method, scenario, None, device=torch.device("cpu")).clients[0]


def test_only_learning_from_whole_batches_is_fused() -> None:
    torch.manual_seed(0)
    model, compiler = build("resnet10@4", 4, image_size=16), Compiler()
    both = FusedPass(model, 8, compiler)
    whole, rest = torch.randn(8, 3, 16, 16), torch.randn(5, 3, 16, 16)
    both(whole), both(rest)
    with torch.no_grad():
        both(whole)
    model.eval()
    both(whole)
    assert compiler.sizes == [8]


def test_a_client_with_few_steps_is_left_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse(client, Compiler())
    assert client.fused is None
    assert not any(isinstance(m, DepthwiseConv2d) for m in client.model.modules())
    monkeypatch.setattr(fused, "WORTH", 6)  # 48 images in batches of 16, two epochs
    compiler = Compiler()
    fuse(client, compiler)
    assert any(isinstance(m, DepthwiseConv2d) for m in client.model.modules())
    client.fit(methods.get("solo").supervised_loss.__get__(methods.get("solo")))
    assert compiler.sizes == [16] * 6


def test_on_a_cpu_it_is_refused_in_one_line(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", compile=True)
    with pytest.raises(UsageError, match="--compile is not possible: it is for GPUs"):
        run(experiment)
    assert not (experiment.out / "events.jsonl").exists()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["efficientnet_b0@0.5", "mobilenet_v2@0.5"])
def test_with_lean_layers_a_model_is_the_same_model(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 4, image_size=32).eval()
    x = torch.randn(2, 3, 32, 32)
    names, before = list(model.state_dict()), model(x)
    use_lean_layers(model)
    layers = list(model.modules())
    depthwise = [m for m in layers if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert depthwise
    assert all(isinstance(m, DepthwiseConv2d) for m in depthwise)
    assert all(_taps(m.weight).data_ptr() == m.weight.data_ptr() for m in depthwise)  # read as they lie, not copied
    assert any(isinstance(m, MeanPool) for m in layers)
    assert any(isinstance(m, LinearExcitation) for m in layers) == name.startswith("efficientnet")
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)


def test_only_what_our_kernels_can_do_counts_as_depthwise() -> None:
    assert is_depthwise(nn.Conv2d(8, 8, 3, groups=8, bias=False))
    for other in (
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 16, 3, groups=8, bias=False),
        nn.Conv2d(8, 8, (3, 1), groups=8, bias=False),
        nn.Conv2d(8, 8, 7, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding="same"),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding=1, padding_mode="reflect"),
        nn.Linear(8, 8),
    ):
        assert not is_depthwise(other)


def test_kernels_compute_torchs_convolution_and_its_gradients() -> None:
    """Interpreted, on a CPU: forward pass, gradients of images and of filters, for both sizes and strides."""
    script = Path(__file__).with_name("depthwise_on_a_cpu.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same") == 4


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(32, 3, 1, 32), (96, 3, 2, 32), (144, 5, 2, 16), (480, 5, 1, 4), (40, 3, 1, 7)])
def test_kernels_on_a_gpu_against_float64(shape: tuple[int, int, int, int]) -> None:
    from fedchoir.engines.depthwise import depthwise

    channels, size, stride, side = shape
    x = torch.randn(16, channels, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, size, size, device="cuda")
    x.requires_grad_(), w.requires_grad_()
    y = depthwise(x, w, stride, size // 2)
    dy = torch.randn_like(y)
    exact_x, exact_w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    exact = nn.functional.conv2d(exact_x, exact_w, None, stride, size // 2, 1, channels)
    wanted = (exact, *torch.autograd.grad(exact, (exact_x, exact_w), dy.double()))
    for mine, theirs in zip((y, *torch.autograd.grad(y, (x, w), dy)), wanted, strict=True):
        assert torch.linalg.vector_norm(mine.double() - theirs) < 1e-6 * torch.linalg.vector_norm(theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fused_step_on_a_gpu_is_the_plain_step(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    plain = build("mobilenet_v2@0.5", 4, image_size=32).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain.head[0].p = 0.0  # its draws would differ
    ours = build("mobilenet_v2@0.5", 4, image_size=32).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours.head[0].p = 0.0
    ours.load_state_dict(plain.state_dict())
    use_lean_layers(ours)
    x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    losses = []
    for both in (plain.both, FusedPass(ours, 64)):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            _, z = both(x)
        loss = z.float().square().mean()
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if precision == "fp32" else 3e-2)
    found = torch.cat([p.grad.flatten() for p in ours.parameters() if p.grad is not None])
    wanted = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    similarity = torch.nn.functional.cosine_similarity(found, wanted, dim=0)
    assert similarity > (0.9999 if precision == "fp32" else 0.98)
