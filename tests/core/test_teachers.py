"""Frozen models: they share tensors with the original, and BatchNorm's statistics do not change."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from fedchoir.core.teachers import (
    Teacher,
    TeacherOutput,
    copy_structure,
    freeze_batchnorm_stats,
    frozen_batchnorm_stats,
)
from fedchoir.models import Model, build
from fedchoir.utils.input_spec import InputSpec

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def make_model() -> Model:
    torch.manual_seed(0)
    return build("resnet10@4", 4, InputSpec.image(16))


def test_outputs_are_logits_features_or_any_function() -> None:
    model = make_model().eval()
    h, z = model.features_and_logits(IMAGES)
    assert torch.equal(TeacherOutput(model, "logits", nullcontext)(IMAGES), z)
    assert torch.equal(TeacherOutput(model, "features", nullcontext)(IMAGES), h)
    own = TeacherOutput(model, lambda m, x: m(x).softmax(dim=1).double(), nullcontext)(IMAGES)
    torch.testing.assert_close(own, z.softmax(dim=1))
    assert own.dtype == torch.float32
    assert not own.requires_grad


def test_a_copy_of_the_structure_shares_every_tensor_until_others_are_assigned() -> None:
    model = make_model()
    copy = copy_structure(model)
    pairs = list(zip(model.state_dict().values(), copy.state_dict().values(), strict=True))
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    copy.load_state_dict({n: torch.zeros_like(t) for n, t in model.state_dict().items()}, assign=True)
    assert any(p.abs().max() > 0 for p in model.parameters())


def test_batchnorm_normalises_by_the_batch_without_updating_its_statistics() -> None:
    model = make_model().train()
    expected = make_model().train()(IMAGES)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with frozen_batchnorm_stats(model):
        torch.testing.assert_close(model(IMAGES), expected)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items() if "num_batches" not in n)
    model(IMAGES)  # and afterwards it updates again
    assert any(not torch.equal(before[n], t) for n, t in model.state_dict().items() if "running" in n)


def test_layers_without_statistics_stay_as_they_are() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert freeze_batchnorm_stats(model) == [model[0]]
    with frozen_batchnorm_stats(model):
        pass
    assert not model[1].track_running_stats


def test_a_teacher_gives_logits_in_eval_mode_unless_asked_otherwise() -> None:
    teacher = Teacher({})
    assert (teacher.output, teacher.batchnorm) == ("logits", "eval")
