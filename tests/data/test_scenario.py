"""Scenarios: private samples, test sets, notes, centralized data."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import DataOptions, Scenario, info, load_scenario
from fedchoir.utils.errors import UsageError

DIGITS = ("mnist", "usps", "svhn", "syn")


@pytest.fixture
def digits_root(tmp_path, write_npz):
    shapes = {"mnist": (28, 28), "usps": (16, 16), "svhn": (32, 32, 3), "syn": (32, 32, 3)}
    for name, shape in shapes.items():
        write_npz(tmp_path / f"{name}.npz", train=200, test=40, shape=shape)
    return tmp_path


@pytest.fixture
def sites(tmp_path, write_npz):
    """Four hospitals with seven classes each."""
    for name in ("north", "east", "south", "west"):
        write_npz(tmp_path / "sites" / f"{name}.npz", train=70, test=21, classes=7, shape=(20, 24, 3))
    return tmp_path / "sites"


def sizes(scenario: Scenario) -> list[int]:
    return [len(client.train) for client in scenario.clients]


def office(tmp_path, write_tree):
    for name, count in (("amazon", 30), ("caltech", 20), ("dslr", 10), ("webcam", 10)):
        write_tree(tmp_path / "office_caltech_10" / name, ["bike", "mug"], per_class=count)
    return tmp_path


def hashes(images: ImageSet) -> set[bytes]:
    return set(images.hashes())


def trained(scenario: Scenario) -> list[Counter[str]]:
    return [Counter(client.train.hashes()) for client in scenario.clients]


@pytest.mark.parametrize("clients", [None, 4])
def test_digits_lite(clients, assert_disjoint):
    scenario = load_scenario("digits-lite", seed=0, options=DataOptions(clients=clients))
    assert tuple(scenario.tests) == tuple(c.name for c in scenario.clients) == ("pen", "print", "scene", "blend")
    assert sizes(scenario) == [200, 400, 500, 500]
    assert scenario.notes == ()
    assert scenario.own_tests == {}
    assert_disjoint(scenario)
    for client in scenario.clients:
        assert client.domain == client.name
        assert set(client.train.labels.tolist()) == set(range(10))


def test_private_images_follow_the_seed():
    options = DataOptions(private=(50,))
    one, same, other = (load_scenario("digits-lite", seed=s, options=options) for s in (0, 0, 1))
    assert torch.equal(one.clients[0].train.inputs, same.clients[0].train.inputs)
    assert not torch.equal(one.clients[0].train.inputs, other.clients[0].train.inputs)
    assert torch.equal(one.tests["pen"].inputs, other.tests["pen"].inputs)


def test_digits_from_npz_notes_what_is_not_the_papers(digits_root, assert_disjoint):
    scenario = load_scenario("digits", root=digits_root, seed=0)
    assert tuple(scenario.tests) == DIGITS
    assert sizes(scenario) == [150, 80, 200, 200]
    assert_disjoint(scenario)
    said = "\n".join(scenario.notes)
    assert "svhn: all 200 training samples used, 5000 in the papers or their code" in said
    assert "syn: read from syn.npz, not from the original" in said
    assert "mnist: 200 training images found, 60000 in the complete data set" in said


def test_explicit_sizes_must_be_there(digits_root):
    with pytest.raises(UsageError, match="private: 201 images wanted of mnist, which has 200"):
        load_scenario("digits", root=digits_root, options=DataOptions(private=(201, 1, 1, 1)))
    with pytest.raises(UsageError, match=r"private: 2 values for 4 domains \(mnist, usps, svhn, syn\)"):
        load_scenario("digits", root=digits_root, options=DataOptions(private=(5, 5)))
    given = DataOptions(private=(0.1, 1.0, 7, 200))
    assert sizes(load_scenario("digits", root=digits_root, options=given)) == [20, 200, 7, 200]


def test_more_clients_than_domains(digits_root, assert_disjoint):
    scenario = load_scenario("digits", root=digits_root, options=DataOptions(clients=20, private=(50,)))
    assert [c.name for c in scenario.clients[:6]] == ["mnist-0", "mnist-1", "mnist-2", "mnist-3", "mnist-4", "usps-0"]
    assert [c.domain for c in scenario.clients[:6]] == ["mnist"] * 5 + ["usps"]
    assert sizes(scenario) == [10] * 20
    assert_disjoint(scenario)
    uneven = load_scenario("digits", root=digits_root, options=DataOptions(clients=6, private=(50,)))
    assert [c.name for c in uneven.clients] == ["mnist-0", "mnist-1", "usps-0", "usps-1", "svhn", "syn"]
    with pytest.raises(UsageError, match="clients: 5 clients for the 4 private samples of mnist"):
        load_scenario("digits", root=digits_root, options=DataOptions(clients=20, private=(4,)))


def test_fewer_clients_than_domains(digits_root):
    scenario = load_scenario("digits", root=digits_root, options=DataOptions(clients=2))
    assert [c.name for c in scenario.clients] == ["mnist", "usps"]
    assert tuple(scenario.tests) == DIGITS
    assert "svhn: no client has it; it is only tested on" in scenario.notes


def test_office_takes_48_percent_of_the_80_percent(tmp_path, write_tree, assert_disjoint):
    scenario = load_scenario("office-caltech", root=office(tmp_path, write_tree))
    assert [len(test) for test in scenario.tests.values()] == [12, 8, 4, 4]
    assert sizes(scenario) == [23, 15, 8, 8]  # 48 % of 48, 32, 16, 16
    assert_disjoint(scenario)


def test_whole_folder_leaks_as_told_and_says_so(tmp_path, write_tree):
    options = DataOptions(test_split="whole-folder")
    scenario = load_scenario("office-caltech", root=office(tmp_path, write_tree), options=options)
    assert [len(test) for test in scenario.tests.values()] == [60, 40, 20, 20]
    assert sizes(scenario) == [23, 15, 8, 8]
    assert sum("TESTED ON THE WHOLE FOLDER" in note for note in scenario.notes) == 4
    for client in scenario.clients:
        assert set(client.train.hashes()) <= set(scenario.tests[client.domain].hashes())


def test_whole_folder_trains_on_the_first_part_of_a_folder(tmp_path, write_tree):
    for name in ("amazon", "caltech", "dslr", "webcam"):
        write_tree(tmp_path / "office_caltech_10" / name, ["bag", "bike", "mug", "pen", "screen"], per_class=5)
    options = DataOptions(test_split="whole-folder", private=(0.99,))
    scenario = load_scenario("office-caltech", root=tmp_path, options=options)
    for client in scenario.clients:
        assert client.train.labels.unique().tolist() == [0, 1, 2, 3]
        assert scenario.tests[client.domain].labels.unique().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["digits", "office-caltech"])
def test_validation_holds_training_images_back_and_never_looks_at_the_test(
    name, tmp_path, write_tree, digits_root, assert_disjoint
):
    root = digits_root if name == "digits" else office(tmp_path, write_tree)
    real = load_scenario(name, root=root, options=DataOptions(private=(1.0,)))
    found, other = (
        load_scenario(name, root=root, seed=seed, options=DataOptions(test_split="validation", private=(1.0,)))
        for seed in (0, 1)
    )
    assert_disjoint(found)
    for client, before, held, test in zip(
        found.clients, real.clients, found.tests.values(), real.tests.values(), strict=True
    ):
        assert hashes(client.train) | hashes(held) == hashes(before.train)
        assert not hashes(held) & hashes(test)
        assert 0.1 < len(held) / len(before.train) < 0.3
        assert set(held.labels.tolist()) == set(before.train.labels.tolist())
    assert [hashes(t) for t in found.tests.values()] == [hashes(t) for t in other.tests.values()]  # whatever the seed
    assert sum("held-back training samples (test_split='validation')" in note for note in found.notes) == 4


def test_whole_folder_leaves_official_test_splits_alone(digits_root, assert_disjoint):
    options = DataOptions(test_split="whole-folder")
    scenario = load_scenario("digits", root=digits_root, options=options)
    assert_disjoint(scenario)
    assert "usps: test_split='whole-folder' has no effect: it has a test split" in scenario.notes


def test_office31_and_office_home(tmp_path, write_tree):
    for name in ("amazon", "dslr", "webcam"):
        write_tree(tmp_path / "office31" / name / "images", ["bike", "mug"], per_class=10)
    for name in ("Art", "Clipart", "Product", "Real World"):
        write_tree(tmp_path / "OfficeHome" / name, ["bed", "pan"], per_class=10)
    three = load_scenario("office31", root=tmp_path)
    assert (sizes(three), three.top_k) == ([8, 8, 8], 5)
    home = load_scenario("office-home", root=tmp_path)
    assert sizes(home) == [16, 16, 16, 16]
    assert "RealWorld: all 16 training samples used, 2000 in the papers or their code" in home.notes


def test_test_images_among_the_training_images_are_left_out(tmp_path, write_npz):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    for name in DIGITS:
        write_npz(tmp_path / f"{name}.npz", train=20, test=3, train_x=images, test_x=images[[4, 5, 4]])
    scenario = load_scenario("digits", root=tmp_path, options=DataOptions(private=(18,)))
    assert sizes(scenario) == [18] * 4
    assert "mnist: 2 training samples left out, because they are also in the test set" in scenario.notes


def test_folder_of_npz_with_seven_classes(sites, assert_disjoint):
    assert info(str(sites)).domains == ("east", "north", "south", "west")
    scenario = load_scenario(str(sites), seed=0)
    assert len(scenario.classes) == 7
    assert tuple(scenario.tests) == tuple(c.domain for c in scenario.clients) == ("east", "north", "south", "west")
    assert sizes(scenario) == [70] * 4
    assert [len(test) for test in scenario.tests.values()] == [21] * 4
    assert scenario.tests["east"].inputs.shape[-2:] == (32, 32)
    assert scenario.notes == ()
    assert_disjoint(scenario)


def test_folder_of_mixed_clients_with_unequal_classes(tmp_path, write_tree, assert_disjoint):
    folder = tmp_path / "zoo"
    write_tree(folder / "berlin", ["ant", "bee", "cat"], per_class=10)
    write_tree(folder / "paris" / "train", ["bee", "dog"], per_class=5)
    write_tree(folder / "paris" / "test", ["bee", "dog"], per_class=2)
    images = np.random.default_rng(1).integers(0, 256, (20, 40, 30), dtype=np.uint8)
    np.savez(folder / "rome.npz", x=images, y=np.array(["cat", "emu"] * 10))
    (folder / "README.txt").write_text("not a client")
    scenario = load_scenario(str(folder), options=DataOptions(image_size=24))
    assert scenario.classes == ("ant", "bee", "cat", "dog", "emu")
    assert [(c.name, len(c.train), len(scenario.tests[c.domain])) for c in scenario.clients] == [
        ("berlin", 24, 6),
        ("paris", 10, 4),
        ("rome", 16, 4),
    ]
    named = {c.name: {scenario.classes[i] for i in c.train.labels.tolist()} for c in scenario.clients}
    assert named == {"berlin": {"ant", "bee", "cat"}, "paris": {"bee", "dog"}, "rome": {"cat", "emu"}}
    assert scenario.notes == ("class names differ between clients: 5 in total, berlin has 3, paris has 2, rome has 2",)
    assert_disjoint(scenario)


def test_numbered_classes_are_ordered_as_numbers(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=images[:20], y=np.array([2, 10] * 10))
    np.savez(tmp_path / "b.npz", x=images[20:], y=np.array([10, 11] * 10))
    scenario = load_scenario(str(tmp_path))
    assert scenario.classes == ("2", "10", "11")
    assert set(scenario.clients[1].train.labels.tolist()) == {1, 2}


def test_label_noise_touches_training_labels_only():
    clean, noisy = (load_scenario("digits-lite", seed=1, options=DataOptions(label_noise=r)) for r in (0.0, 0.2))
    for before, after in zip(clean.clients, noisy.clients, strict=True):
        assert torch.equal(before.train.inputs, after.train.inputs)
        assert int((before.train.labels != after.train.labels).sum()) == round(0.2 * len(before.train))
    assert torch.equal(clean.tests["pen"].labels, noisy.tests["pen"].labels)
    assert noisy.notes == ("label noise: 320 training labels made wrong (symmetric, 0.2)",)


def test_missing_data_of_a_scenario(tmp_path):
    with pytest.raises(UsageError, match=r"mnist: no mnist\.npz or MNIST/raw in the data root .*data fetch mnist"):
        load_scenario("digits", root=tmp_path)


def test_everyone_has_what_all_had_and_labels_stay_with_their_images():
    options = {"private": (20, 30, 10, 10), "label_noise": 0.2}
    apart = load_scenario("digits-lite", seed=3, options=DataOptions(**options))
    together = load_scenario("digits-lite", seed=3, options=DataOptions(**options, centralized=True))
    assert trained(together) == [sum(trained(apart), Counter())] * 4
    assert [client.domain for client in together.clients] == [client.domain for client in apart.clients]
    labelled = {
        h: int(label)
        for client in apart.clients
        for h, label in zip(client.train.hashes(), client.train.labels, strict=True)
    }
    for client in together.clients:
        assert [labelled[h] for h in client.train.hashes()] == client.train.labels.tolist()
    said = "CENTRALIZED: every client trains on the 70 private samples of all clients"
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
    tested = {h for test in together.tests.values() for h in test.hashes()}
    assert tested & set(trained(apart)[0])
    assert not tested & set(trained(together)[0])
    assert "the 23 private samples" in together.notes[-1]
    assert together.notes[-1].endswith("1 more are left out, because they are in a test set")


def test_under_label_skew_everyone_has_the_whole_training_set(tmp_path, write_npz):
    write_npz(tmp_path / "cifar10.npz", train=60, test=20, shape=(32, 32, 3))
    options = DataOptions(clients=3, partition="iid", centralized=True)
    scenario = load_scenario("cifar10", root=tmp_path, options=options)
    assert [len(client.train) for client in scenario.clients] == [60, 60, 60]
