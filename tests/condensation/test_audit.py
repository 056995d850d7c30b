"""The site's own attacks on its condensed set find copies, and nothing where there is nothing."""

from __future__ import annotations

import torch
from tests.condensation.test_text import VOCABULARY, WIDTH, draw_texts, written

from fedchoir.condensation.audit import Labelled, audit
from fedchoir.utils.input_spec import InputSpec

INPUTS = InputSpec("table", (12,))


def draw(count: int, seed: int) -> Labelled:
    labels = torch.arange(count) % 2
    return Labelled(torch.randn(count, 12, generator=torch.Generator().manual_seed(seed)) + 2 * labels[:, None], labels)


def test_copies_of_private_samples_are_found() -> None:
    private, unseen = draw(60, 0), draw(60, 1)
    found = audit(private, private, unseen, INPUTS, classes=2, seed=0)
    assert found.nearest.value == 1.0
    assert found.distance < 0.01
    assert found.best > found.chance + 30


def test_unrelated_samples_show_nothing() -> None:
    made, private, unseen = draw(20, 2), draw(60, 0), draw(60, 1)
    found = audit(made, private, unseen, INPUTS, classes=2, seed=0)
    assert found.nearest.low < 0.5 < found.nearest.high
    assert found.embedded.low < 0.5 < found.embedded.high
    assert found.distance > 0.7
    assert abs(found.best - found.chance) < 6


def test_classes_that_were_not_sent_are_left_out() -> None:
    private, unseen = draw(60, 0), draw(60, 1)
    zeros = Labelled(private.samples[private.labels == 0], private.labels[private.labels == 0])
    found = audit(zeros, private, unseen, INPUTS, classes=2, seed=0)
    assert found.nearest.value == 1.0


TEXT = InputSpec("text", (WIDTH,), vocabulary=VOCABULARY)


def texts(count: int, seed: int) -> Labelled:
    return Labelled(draw_texts(count, seed), torch.arange(count) % 2)


def test_copies_of_texts_are_found() -> None:
    private, unseen = texts(60, 0), texts(60, 10)
    found = audit(Labelled(private.samples[:20], private.labels[:20]), private, unseen, TEXT, classes=2, seed=0)
    assert found.nearest.value > 0.6
    assert found.distance < 0.01
    assert found.best == (private.samples[:20] != 0).sum(dim=1).max()
    assert found.chance < 10
    assert found.rarest == 1


def test_written_texts_are_no_copies() -> None:
    private, unseen = texts(200, 0), texts(200, 10)
    made = torch.cat([written(private.samples[private.labels == c]) for c in range(2)])
    found = audit(Labelled(made, torch.arange(2).repeat_interleave(10)), private, unseen, TEXT, classes=2, seed=0)
    assert found.nearest.low < 0.5 < found.nearest.high
    assert found.distance > 0.7
    assert found.best <= found.chance
    assert found.rarest is not None
    assert found.rarest >= 5
