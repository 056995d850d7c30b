"""What every loss keeps: dtype, device, scalars, targets without gradient, and no synchronisation with the device."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedchoir import losses

B, C, D = 6, 4, 3


class Case(NamedTuple):
    """One loss on tensors: `own` may learn, `targets` may not."""

    call: Callable[..., Tensor]
    own: list[tuple[int, ...]]
    targets: list[tuple[int, ...]]
    synchronises: bool = False


def labels(like: Tensor) -> Tensor:
    return torch.arange(B, device=like.device) % C


CASES = {
    "cross_correlation": Case(lambda z, t: losses.cross_correlation(z, t).sum(), [(B, C)], [(B, C)]),
    "fccm": Case(losses.fccm, [(B, C)], [(B, C)]),
    "fccm_unbiased": Case(lambda z, t: losses.fccm(z, t, standardise="unbiased"), [(B, C)], [(B, C)]),
    "decorrelation": Case(losses.decorrelation, [(B, D)], []),
    "decorrelation_official": Case(lambda h: losses.decorrelation(h, "official"), [(B, D)], []),
    "label_smoothing": Case(lambda z: losses.label_smoothing(z, labels(z), 0.3), [(B, C)], []),
    "instance_similarity": Case(lambda h: losses.instance_similarity(h).sum(), [(B, D)], []),
    "fisl": Case(losses.fisl, [(B, B - 1)], [(B, B - 1)]),
    "frr": Case(losses.frr, [(B, D)], [(B, D)]),
    "kd": Case(lambda s, t: losses.kd(s, t, 2.0), [(B, C)], [(B, C)]),
    "fntd": Case(lambda s, t: losses.fntd(s, t, labels(s)), [(B, C)], [(B, C)]),
    "fntd_renormalised": Case(lambda s, t: losses.fntd(s, t, labels(s), form="renormalised"), [(B, C)], [(B, C)]),
    "cnd": Case(lambda s, t: losses.cnd(s, t, labels(s)), [(B, C)], [(B, C)]),
    "pooled_kl": Case(losses.pooled_kl, [(B, C)], [(B, C), (B,)]),
    "pool_predictions": Case(
        lambda z: sum(t.sum() for t in losses.pool_predictions(z, z.new_ones(1, 2, B))), [(2, B, C)], []
    ),
    "sce": Case(lambda z: losses.sce(z, labels(z)), [(B, C)], []),
    "class_prototypes": Case(lambda h: losses.class_prototypes(h, labels(h), C)[0].sum(), [(B, D)], []),
    "prototype_contrast": Case(lambda h, u: losses.prototype_contrast(h, labels(h), u, 0.5), [(B, D)], [(C, D)]),
    "prototype_contrast_present": Case(
        lambda h, u: losses.prototype_contrast(h, labels(h), u, 0.5, present=u[:, 0] > 0), [(B, D)], [(C, D)]
    ),
    "apcl": Case(lambda h, u: losses.apcl(h, labels(h), u, 0.5, 0.3), [(B, D)], [(C, D)]),
    "mfa": Case(lambda z: losses.mfa(z, labels(z), labels(z).flip(0), 0.3), [(B, C)], []),
    "mixed_features": Case(lambda a, b: losses.mixed_features(a, b, 0.3).sum(), [(B, D), (B, D)], []),
    "gaussian": Case(lambda x: sum(t.sum() for t in losses.gaussian(x)), [(B, D, 2, 2)], []),
    "fia": Case(losses.fia, [(B, D), (B, D, D)], [(B, D), (B, D, D)]),
    "fia_mean": Case(lambda *t: losses.fia(*t, "mean"), [(B, D), (B, D, D)], [(B, D), (B, D, D)]),
    "fia_diagonal": Case(losses.fia, [(B, D), (B, D)], [(B, D), (B, D)]),
    "fbm": Case(losses.fbm, [(B, D)], []),
    "moon": Case(losses.moon, [(B, D)], [(B, D), (B, D)]),
    "proximal": Case(lambda w, r: losses.proximal([w], [r]), [(D,)], [(D,)]),
    "gradient_correction": Case(lambda w, c: losses.gradient_correction([w], [c]), [(D,)], [(D,)]),
    "ewc": Case(lambda w, r, f: losses.ewc([w], [r], [f]), [(D,)], [(D,), (D,)]),
    "mutual_understanding": Case(losses.mutual_understanding, [(B, D)], [(D, D)], synchronises=True),
    "mutual_understanding_products": Case(
        lambda z, r: losses.mutual_understanding(z, r, "products"), [(B, D)], [(D, D)]
    ),
    "nt_xent": Case(losses.nt_xent, [(B, D), (B, D)], []),
    "prototype_distance": Case(lambda h, u: losses.prototype_distance(h, labels(h), u), [(B, D)], [(C, D)]),
    "prototype_distance_euclidean": Case(
        lambda h, u: losses.prototype_distance(h, labels(h), u, u[:, 0] > 0, "euclidean"), [(B, D)], [(C, D)]
    ),
    "margin_contrast": Case(lambda u, h: losses.margin_contrast(u, h, labels(h), 0.5), [(C, D)], [(B, D)]),
    "cluster_contrast": Case(
        lambda h, u: losses.cluster_contrast(h, labels(h), u, labels(h)[:5] - 1, 0.5), [(B, D)], [(5, D)]
    ),
    "class_distillation": Case(lambda z, f: losses.class_distillation(z, labels(z), f), [(B, C)], [(C, C)]),
    "class_distillation_logits": Case(
        lambda z, f: losses.class_distillation(z, labels(z), f, f[:, 0] > 0, "logits"), [(B, C)], [(C, C)]
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
captured_cases = pytest.mark.parametrize(
    "case", [c for c in CASES.values() if not c.synchronises], ids=[k for k, c in CASES.items() if not c.synchronises]
)


def inputs(case: Case, dtype: torch.dtype, device: str = "cpu") -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(device, dtype).requires_grad_()

    return [draw(s) for s in case.own], [draw(s) for s in case.targets]


def test_the_package_exports_what_it_lists():
    assert sorted(losses.__all__) == losses.__all__
    assert all(callable(getattr(losses, name)) for name in losses.__all__)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scalar_in_the_inputs_dtype_and_gradients_for_the_learner_alone(case, dtype):
    own, targets = inputs(case, dtype)
    loss = case.call(*own, *targets)
    assert loss.shape == ()
    assert loss.dtype == dtype
    assert loss.device == own[0].device
    loss.backward()
    for tensor in own:
        assert tensor.grad is not None
        assert tensor.grad.dtype == dtype
        assert tensor.grad.isfinite().all()
    assert all(t.grad is None for t in targets)


@every_case
def test_gradients_agree_with_finite_differences(case):
    """Mutual understanding's too: its basis is held fixed, but at a minimum, where moving it changes nothing."""
    own, targets = inputs(case, torch.float64)
    fixed = [t.detach() for t in targets]
    assert torch.autograd.gradcheck(lambda *x: case.call(*x, *fixed), tuple(own))


@every_case
def test_inputs_are_left_as_they_were(case):
    own, targets = inputs(case, torch.float32)
    before = [t.detach().clone() for t in own + targets]
    case.call(*own, *targets)
    assert all(torch.equal(a, b) for a, b in zip(before, own + targets, strict=True))


@every_case
def test_autocast_changes_neither_dtype_nor_precision(case):
    own, targets = inputs(case, torch.float32)
    plain = case.call(*own, *targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = case.call(*own, *targets)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain)


@captured_cases
def test_nothing_depends_on_values_on_the_host(case):
    """A fake tensor has no values: reading one back, or a mask as an index, is an error."""
    with FakeTensorMode():
        own, targets = ([torch.empty(s, requires_grad=True) for s in shapes] for shapes in (case.own, case.targets))
        case.call(*own, *targets).backward()


@captured_cases
@pytest.mark.gpu
def test_a_cuda_graph_replays_the_loss(case):
    own, targets = inputs(case, torch.float32, "cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(case.call(*own, *targets), own)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = case.call(*own, *targets)
        gradients = torch.autograd.grad(loss, own)
    graph.replay()
    expected = case.call(*own, *targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, own))
