"""Label-skew scenarios: partitions, own test sets and partition files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import DataOptions, Scenario, load_scenario
from fedchoir.utils.errors import UsageError


@pytest.fixture
def cifar_root(tmp_path, write_npz):
    write_npz(tmp_path / "cifar10.npz", train=600, test=300, label_names=np.array([f"class {i}" for i in range(10)]))
    return tmp_path


def sizes(scenario: Scenario) -> list[int]:
    return [len(client.train) for client in scenario.clients]


def hashes(images: ImageSet) -> set[bytes]:
    return set(images.hashes())


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "classes", "iid"])
def test_label_skew(cifar_root, kind, assert_disjoint):
    options = DataOptions(partition=kind, clients=5, classes_per_client=4)
    scenario = load_scenario("cifar10", root=cifar_root, seed=3, options=options)
    assert [c.name for c in scenario.clients] == [f"client-{i}" for i in range(5)]
    assert {c.domain for c in scenario.clients} == set(scenario.tests) == {"global"}
    assert sum(sizes(scenario)) == 600
    assert_disjoint(scenario)
    assert scenario.classes[3] == "class 3"
    shares = list(scenario.own_tests.values())
    assert list(scenario.own_tests) == [c.name for c in scenario.clients]
    assert sum(map(len, shares)) == 300
    for client, own in zip(scenario.clients, shares, strict=True):
        mine, theirs = (s.labels.bincount(minlength=10).float() for s in (client.train, own))
        assert ((mine / 2 - theirs).abs() <= 1).all()  # half as many test images as training images


def test_label_skew_defaults_and_private_size(cifar_root):
    scenario = load_scenario("cifar10", root=cifar_root, options=DataOptions(private=(0.5,)))
    assert len(scenario.clients) == 10
    assert sum(sizes(scenario)) == 300


def test_many_clients_have_a_test_image_each(cifar_root):
    scenario = load_scenario("cifar10", root=cifar_root, options=DataOptions(clients=300, beta=0.05))
    assert min(sizes(scenario)) >= 2
    assert min(map(len, scenario.own_tests.values())) >= 1
    assert any("moved to them" in note for note in scenario.notes)


def test_partition_file(cifar_root, tmp_path):
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"a": list(range(300)), "b": list(range(300, 599))}))
    options = DataOptions(partition="file", partition_file=path)
    scenario = load_scenario("cifar10", root=cifar_root, options=options)
    assert [(c.name, len(c.train)) for c in scenario.clients] == [("a", 300), ("b", 299)]
    assert "partition_file leaves out 1 of 600 training samples" in scenario.notes
    for field, value, message in (("clients", 3, "partition_file has 2"), ("private", (10,), "give one of the two")):
        more = DataOptions(partition="file", partition_file=path, **{field: value})
        with pytest.raises(UsageError, match=message):
            load_scenario("cifar10", root=cifar_root, options=more)


def test_partition_file_counts_before_leaks_are_left_out(tmp_path, write_npz):
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    write_npz(tmp_path / "cifar10.npz", train=10, test=2, train_x=images, test_x=images[[0, 5]])
    path = tmp_path / "partition.json"
    path.write_text(json.dumps([[0, 1, 2], [5, 6, 9]]))
    options = DataOptions(partition="file", partition_file=path, image_size=8)
    scenario = load_scenario("cifar10", root=tmp_path, options=options)
    kept = [torch.from_numpy(images[i]).permute(0, 3, 1, 2) for i in ([1, 2], [6, 9])]
    assert all(torch.equal(c.train.inputs, k) for c, k in zip(scenario.clients, kept, strict=True))


def test_validation_under_label_skew(tmp_path, write_npz, assert_disjoint):
    write_npz(tmp_path / "cifar10.npz", train=200, test=40, shape=(32, 32, 3))
    options = DataOptions(test_split="validation", clients=3, partition="iid")
    found = load_scenario("cifar10", root=tmp_path, options=options)
    real = load_scenario("cifar10", root=tmp_path, options=DataOptions(clients=3, partition="iid"))
    assert_disjoint(found)
    assert not hashes(found.tests["global"]) & hashes(real.tests["global"])
    assert all(hashes(own) <= hashes(found.tests["global"]) for own in found.own_tests.values())
