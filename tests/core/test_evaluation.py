"""Accuracies: small test sets share batches and have the same accuracies; intra-, inter-domain and mean values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir.core.evaluation import EVAL_BATCH, batch_for, evaluate, intra_inter, last_rounds_mean
from fedchoir.core.metrics import METRICS, Predictions
from fedchoir.data.image.image_set import ImageSet

LENGTHS = [1, 1, 600, 3, 7, 249, 1, 250, 251, 2, 5]


def sets(lengths: list[int]) -> list[ImageSet]:
    draw = torch.Generator().manual_seed(3)
    images = [torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=draw) for n in lengths]
    return [ImageSet(x, torch.randint(0, 5, (len(x),), generator=draw)) for x in images]


WEIGHTS = torch.randn(48, 5, generator=torch.Generator().manual_seed(4))  # no two logits are equal


def model(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1) @ WEIGHTS


def accuracies(tests: list[ImageSet], top_k: int = 1) -> list[float]:
    return [score.accuracy for score in evaluate(model, tests, top_k=top_k)]


@pytest.mark.parametrize("top_k", [1, 2])
def test_against_numpy(top_k: int) -> None:
    for test, found in zip(sets(LENGTHS), accuracies(sets(LENGTHS), top_k), strict=True):
        scaled = test.inputs.double().numpy() / 255
        x = (scaled - np.reshape(test.mean, (1, 3, 1, 1))) / np.reshape(test.std, (1, 3, 1, 1))
        z = x.reshape(len(x), -1) @ WEIGHTS.double().numpy()
        best = np.argsort(-z, axis=1)[:, :top_k]
        assert found == pytest.approx(100 * (best == test.labels.numpy()[:, None]).any(1).mean())
        assert [found] == accuracies([test], top_k)


def test_the_number_of_passes_grows_with_images_and_not_with_sets() -> None:
    sizes: list[int] = []
    evaluate(lambda x: sizes.append(len(x)) or model(x), sets([1] * 1000))
    assert sum(sizes) == 1000
    assert len(sizes) == 1000 / EVAL_BATCH["cpu"]


def test_sets_with_another_normalisation_do_not_share_a_batch() -> None:
    one, two = sets([3, 3])
    dark = ImageSet(two.inputs, two.labels, mean=(0.9, 0.9, 0.9))
    assert accuracies([one, dark]) == accuracies([one]) + accuracies([dark])


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_accuracy_does_not_depend_on_what_else_is_computed(top_k: int) -> None:
    tests = sets(LENGTHS)
    scores = evaluate(model, tests, "metrics", top_k=top_k)
    assert [score.accuracy for score in scores] == accuracies(tests, top_k)
    assert [score.metrics["accuracy"] for score in scores] == accuracies(tests, top_k)


def test_metrics_are_those_of_the_softmax_of_the_logits() -> None:
    (test,) = sets([600])
    (score,) = evaluate(model, [test], "metrics")
    z = model(test.transform(test.inputs)).double().numpy()  # type: ignore[misc]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    wanted = Predictions(p, test.labels.numpy(), p.argmax(1) == test.labels.numpy())
    assert score.metrics == pytest.approx({name: metric(wanted) for name, metric in METRICS.items()}, rel=1e-5)
    assert score.intervals == {}


def test_intervals_follow_from_the_seed_alone() -> None:
    one, two = ([s.intervals for s in evaluate(model, sets([60, 30]), "intervals", seed=seed)] for seed in (0, 1))
    alone = [evaluate(model, [test], "intervals")[0].intervals for test in sets([60, 30])]
    assert one == alone
    assert one != two


def test_a_model_that_diverged_has_an_accuracy_and_nothing_else() -> None:
    (score,) = evaluate(lambda x: model(x) * torch.nan, sets([40]), "intervals")
    assert 0 <= score.accuracy <= 100
    assert score.metrics == {**dict.fromkeys(METRICS), "accuracy": score.accuracy}


def test_unknown_devices_evaluate_with_the_small_batch() -> None:
    assert [batch_for(torch.device(name)) for name in ("cpu", "cuda", "meta")] == [250, 1024, 250]


def test_intra_and_inter_domain_accuracy() -> None:
    assert intra_inter([90.0, 40.0, 20.0], domain=1) == (40.0, 55.0)
    assert intra_inter([90.0, 40.0], domain=None) == (65.0, None)  # label skew: there is one domain
    assert intra_inter([90.0], domain=0) == (90.0, None)
    assert intra_inter([90.0, None, 20.0], domain=1) == (None, 55.0)  # not defined on the own test set


def test_the_reported_accuracy_is_the_mean_of_the_last_three_rounds_cell_by_cell() -> None:
    rounds = [[[float(r), 10.0 * r], [100.0 - r, 0.0]] for r in range(6)]
    assert last_rounds_mean(rounds) == [[4.0, 40.0], [96.0, 0.0]]
    assert last_rounds_mean(rounds[:1]) == rounds[0]


def test_a_client_that_missed_an_evaluation_has_the_mean_of_its_others() -> None:
    assert last_rounds_mean([[[9.0], [0.0]], [[1.0], None], [[2.0], [4.0]], [[3.0], [8.0]]]) == [[2.0], [6.0]]
    assert last_rounds_mean([[[1.0], None], [[3.0], None]]) == [[2.0], []]
