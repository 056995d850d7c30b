"""KD, FNTD, CND and SCE against loops, and what their gradients say about the true class."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir import losses

FORMS = ("masked", "renormalised")


def softmax(z, temperature=1.0):
    weights = [math.exp((x - max(z)) / temperature) for x in z]
    return [w / sum(weights) for w in weights]


def reference_non_target(s, t, y, temperature, form):
    """Σ_{u≠y} p_T log(p_T/p_S) of one sample, without the τ²."""
    others = [u for u in range(len(s)) if u != y]
    if form == "renormalised":
        p = softmax([t[u] for u in others], temperature)
        q = softmax([s[u] for u in others], temperature)
    else:
        p = [softmax(t, temperature)[u] for u in others]
        q = [softmax(s, temperature)[u] for u in others]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def batch(seed, b=7, c=5):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = 2 * torch.randn(2, b, c, generator=generator, dtype=torch.float64)
    return student, teacher, torch.randint(c, (b,), generator=generator)


def rows(*tensors):
    return zip(*(t.tolist() for t in tensors), strict=True)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_kd_matches_the_loops(temperature):
    student, teacher, _ = batch(0)
    total = 0.0
    for s, t in rows(student, teacher):
        p, q = softmax(t, temperature), softmax(s, temperature)
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    expected = temperature**2 * total / len(student)
    assert losses.kd(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_without_the_factor_of_tau_squared(temperature):
    """eq. 13 and 14 as printed: the loops alone."""
    student, teacher, labels = batch(2)
    everything = zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True)
    expected = np.mean([reference_non_target(s, t, y, temperature, "masked") for s, t, y in everything])
    plain = losses.fntd(student, teacher, labels, temperature, tau_squared=False)
    assert plain.item() == pytest.approx(expected, rel=1e-10)
    ratio = losses.kd(student, teacher, temperature) / losses.kd(student, teacher, temperature, tau_squared=False)
    assert ratio.item() == pytest.approx(temperature**2, rel=1e-12)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.5, 10))
@settings(max_examples=20, deadline=None)
def test_kd_is_zero_at_equality_and_positive_elsewhere(seed, temperature):
    student, teacher, _ = batch(seed)
    assert losses.kd(student, student.clone(), temperature).item() == 0
    assert losses.kd(student + 5, student, temperature).item() == pytest.approx(0, abs=1e-10)
    assert losses.kd(student, teacher, temperature).item() > 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_fntd_matches_the_loops(form, temperature):
    student, teacher, labels = batch(1)
    samples = [reference_non_target(s, t, y, temperature, form) for s, t, y in rows(student, teacher, labels)]
    loss = losses.fntd(student, teacher, labels, temperature, form).item()
    assert loss == pytest.approx(temperature**2 * np.mean(samples), rel=1e-10)


def test_fntd_defaults_are_the_papers():
    student, teacher, labels = batch(2)
    given_, default = (losses.fntd(student, teacher, labels, *o) for o in [(3.0, "masked"), ()])
    assert given_.item() == default.item()


def true_logit_gradient(student, teacher, labels, temperature, form):
    """Per sample: the batch mean divides by B."""
    student = student.clone().requires_grad_()
    losses.fntd(student, teacher, labels, temperature, form).backward()
    return len(labels) * student.grad.gather(1, labels.unsqueeze(1)).squeeze(1)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.5, 8))
@settings(max_examples=25, deadline=None)
def test_masked_fntd_pushes_the_true_logit_down(seed, temperature):
    student, teacher, labels = batch(seed)
    gradient = true_logit_gradient(student, teacher, labels, temperature, "masked")
    expected = [
        temperature * (1 - softmax(t, temperature)[y]) * softmax(s, temperature)[y]
        for s, t, y in rows(student, teacher, labels)
    ]
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-8)
    assert (gradient > 0).all()


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.5, 8))
@settings(max_examples=25, deadline=None)
def test_renormalised_fntd_leaves_the_true_logit_alone_and_is_never_negative(seed, temperature):
    student, teacher, labels = batch(seed)
    assert (true_logit_gradient(student, teacher, labels, temperature, "renormalised") == 0).all()
    assert losses.fntd(student, teacher, labels, temperature, "renormalised").item() >= 0


def test_masked_fntd_can_be_negative():
    student, teacher, label = (
        torch.tensor([[0.0, 0.0, -5.0]]),
        torch.tensor([[0.0, 0.0, 5.0]]),
        torch.tensor([2]),
    )
    assert losses.fntd(student, teacher, label).item() < 0


@pytest.mark.parametrize("form", FORMS)
def test_non_target_losses_stay_finite_for_certain_teachers(form):
    student = torch.tensor([[500.0, -500.0, 0.0]], requires_grad=True)
    teacher, label = torch.tensor([[-300.0, 800.0, 0.0]]), torch.tensor([1])
    loss = losses.fntd(student, teacher, label, form=form) + losses.cnd(student, teacher, label, form=form)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("loss", [losses.fntd, losses.cnd])
def test_an_unknown_form_is_refused_in_one_line(loss):
    with pytest.raises(ValueError, match=r"^form is 'both'; choose one of: masked, renormalised$"):
        loss(*batch(0), form="both")


@pytest.mark.parametrize("form", FORMS)
def test_cnd_matches_the_loops(form):
    student, teacher, labels = batch(3, b=20, c=3)
    total = 0.0
    for s, t, y in rows(student, teacher, labels):
        gamma = softmax(t)[y] if max(range(3), key=lambda u, t=t: t[u]) == y else 0.0
        total += gamma * reference_non_target(s, t, y, 1.0, form)
    assert total != 0
    loss = losses.cnd(student, teacher, labels, form=form).item()
    assert loss == pytest.approx(total / len(labels), rel=1e-10)


def test_cnd_is_silent_where_the_old_model_was_wrong():
    student, teacher, _ = batch(4)
    wrong = (teacher.argmax(dim=1) + 1) % teacher.shape[1]
    student.requires_grad_()
    loss = losses.cnd(student, teacher, wrong)
    loss.backward()
    assert loss.item() == 0
    assert (student.grad == 0).all()
    assert losses.cnd(student, teacher, teacher.argmax(dim=1)).item() != 0


@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 1.0), (1.0, 0.0), (0.0, 2.0)])
@pytest.mark.parametrize("scale", [1.0, 40.0])  # at 40 most predictions lie under their clamp
def test_sce_matches_the_loops_with_both_clamps(alpha, beta, scale):
    logits, _, labels = batch(5)
    logits = scale * logits
    total = 0.0
    for z, y in rows(logits, labels):
        p = softmax(z)
        log_sum = max(z) + math.log(sum(math.exp(x - max(z)) for x in z))
        q = [max(1.0 if u == y else 0.0, 1e-4) for u in range(len(z))]
        reverse = -sum(min(max(a, 1e-7), 1.0) * math.log(b) for a, b in zip(p, q, strict=True))
        total += alpha * (log_sum - z[y]) + beta * reverse
    assert losses.sce(logits, labels, alpha, beta).item() == pytest.approx(total / len(labels), rel=1e-10)


def test_sce_defaults_are_rhfls():
    logits, _, labels = batch(6)
    assert losses.sce(logits, labels).item() == losses.sce(logits, labels, alpha=0.1, beta=1.0).item()


def test_pooled_kl_is_the_sum_of_all_divergences():
    """Against one divergence after the other, with a weight for every listener, teacher and image."""
    generator = torch.Generator().manual_seed(3)
    teachers = 2 * torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, 3, 6, generator=generator, dtype=torch.float64)
    student = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    pool, negentropy = losses.pool_predictions(teachers, weights)
    for j in range(2):
        total = 0.0
        for n, t in enumerate(teachers.tolist()):
            for b, (row, s) in enumerate(zip(t, student.tolist(), strict=True)):
                p, q = softmax(row), softmax(s)
                total += weights[j, n, b].item() * sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        value = losses.pooled_kl(student, pool[j], negentropy[j])
        assert value.item() == pytest.approx(total / 6, rel=1e-10)
        (gradient,) = torch.autograd.grad(value, student)
        mass = weights[j].sum(dim=0).unsqueeze(1)
        torch.testing.assert_close(gradient, (mass * student.softmax(1) - pool[j]) / 6)


def test_pooled_kl_of_no_teacher_is_nothing():
    student = torch.randn(4, 3, requires_grad=True)
    pool, negentropy = losses.pool_predictions(torch.randn(2, 4, 3), torch.zeros(1, 2, 4))
    value = losses.pooled_kl(student, pool[0], negentropy[0])
    value.backward()
    assert value.item() == 0
    assert not student.grad.any()


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_masked_fntd_needs_more_classes_than_the_temperature(classes):
    """The gradient of CE + FNTD towards the right class, where teacher and student are undecided, is
    (1 − 1/C)(1 − τ/C)."""
    z = torch.zeros(1, classes, requires_grad=True)
    label, teacher = torch.tensor([0]), torch.zeros(1, classes)
    (torch.nn.functional.cross_entropy(z, label) + losses.fntd(z, teacher, label, 3.0, "masked")).backward()
    assert -z.grad[0, 0].item() == pytest.approx((1 - 1 / classes) * (1 - 3 / classes), abs=1e-6)


def test_masked_fntd_of_two_classes_prefers_the_wrong_class():
    """The minimum of CE + FNTD over the student's logits, for a teacher that is 70 % sure of the right class."""
    teacher, label = torch.tensor([[0.85, 0.0]]), torch.tensor([0])
    optima = {}
    for form in ("masked", "renormalised"):
        z = torch.zeros(1, 2, requires_grad=True)
        optimizer = torch.optim.SGD([z], lr=0.1)
        for _ in range(500):
            optimizer.zero_grad()
            (torch.nn.functional.cross_entropy(z, label) + losses.fntd(z, teacher, label, 3.0, form)).backward()
            optimizer.step()
        optima[form] = z.detach().softmax(1)[0, 0].item()
    assert optima["masked"] < 0.5 < optima["renormalised"]
