"""All private images in one place."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedchoir.data.image.image_set import image_hashes
from fedchoir.data.scenario import DataOptions, Scenario, load_scenario
from fedchoir.utils.errors import UsageError


def trained(scenario: Scenario) -> list[Counter[str]]:
    return [Counter(image_hashes(client.train.images)) for client in scenario.clients]


def test_everyone_has_what_all_had_and_labels_stay_with_their_images():
    options = {"private": (20, 30, 10, 10), "label_noise": 0.2}
    apart = load_scenario("digits-lite", seed=3, options=DataOptions(**options))
    together = load_scenario("digits-lite", seed=3, options=DataOptions(**options, centralized=True))
    assert trained(together) == [sum(trained(apart), Counter())] * 4
    assert [client.domain for client in together.clients] == [client.domain for client in apart.clients]
    labelled = {
        h: int(label)
        for client in apart.clients
        for h, label in zip(image_hashes(client.train.images), client.train.labels, strict=True)
    }
    for client in together.clients:
        assert [labelled[h] for h in image_hashes(client.train.images)] == client.train.labels.tolist()
    said = "POOLED: every client trains on the 70 private images of all clients, as if in one place"
    assert together.notes == (*apart.notes, said)
    assert {name: len(test) for name, test in together.tests.items()} == {n: len(t) for n, t in apart.tests.items()}


def test_an_image_that_another_client_is_tested_on_is_left_out(tmp_path, write_npz):
    """Pixel for pixel the same in two places: alone it is no leak, together it would be one."""
    write_npz(tmp_path / "here.npz", train=12, test=6)
    there = np.load(write_npz(tmp_path / "there.npz", train=12, test=6))
    mixed = there["test_x"].copy()
    mixed[0] = np.load(tmp_path / "here.npz")["train_x"][4]
    write_npz(tmp_path / "there.npz", train=12, test=6, test_x=mixed)
    apart, together = (load_scenario(str(tmp_path), options=DataOptions(centralized=p)) for p in (False, True))
    tested = {h for test in together.tests.values() for h in image_hashes(test.images)}
    assert tested & set(trained(apart)[0])
    assert not tested & set(trained(together)[0])
    assert "the 23 private images" in together.notes[-1]
    assert together.notes[-1].endswith("1 more are left out, because they are in a test set")


def test_under_label_skew_everyone_has_the_whole_training_set(tmp_path, write_npz):
    write_npz(tmp_path / "cifar10.npz", train=60, test=20, shape=(32, 32, 3))
    options = DataOptions(clients=3, partition="iid", centralized=True)
    scenario = load_scenario("cifar10", root=tmp_path, options=options)
    assert [len(client.train) for client in scenario.clients] == [60, 60, 60]


def test_not_with_tests_that_hold_private_images():
    with pytest.raises(UsageError, match=r"^pooled: True given; wanted false where test_split is 'whole-folder'"):
        DataOptions(centralized=True, test_split="whole-folder")
