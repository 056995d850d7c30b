"""Partitions use every sample once, follow the seed and leave no client without samples."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.data.partition import classes_per_client, dirichlet, from_file, iid, lognormal, min_samples, shards
from fedchoir.utils.errors import UsageError


def assert_every_image_once(positions, images: int):
    assert torch.cat(list(positions)).sort().values.tolist() == list(range(images))


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=4, max_size=120),
    clients=st.integers(1, 12),
    beta=st.sampled_from([1e-4, 0.05, 0.5, 5.0, 1e3]),
    seed=st.integers(0, 2**31),
)
def test_any_draw_uses_every_image_once_and_starves_nobody(labels, clients, beta, seed):
    tensor = torch.tensor(labels)
    if clients > len(labels):
        with pytest.raises(UsageError, match=f"only {len(labels)} training samples"):
            dirichlet(tensor, clients, beta, seed)
        return
    least = min_samples(len(labels), clients)
    assert least >= 1
    uneven = lognormal(tensor, clients, min(1 / beta, 10), seed)
    capped = dirichlet(tensor, clients, beta, seed, cap=True)
    for drawn in (dirichlet(tensor, clients, beta, seed), capped, iid(tensor, clients, seed), uneven):
        assert len(drawn.positions) == clients
        assert_every_image_once(drawn.positions, len(labels))
        assert min(map(len, drawn.positions)) >= least


def test_hopeless_dirichlet_draw_is_repaired_and_says_so():
    labels = torch.arange(10000) % 10
    drawn = dirichlet(labels, 200, 0.05, seed=0)
    assert_every_image_once(drawn.positions, 10000)
    assert min(map(len, drawn.positions)) == 10
    assert "of 200 clients drew fewer than 10 samples" in drawn.notes[0]


def test_a_cap_makes_sizes_more_alike_and_no_client_gets_a_class_once_it_is_full():
    labels = torch.arange(50000) % 10

    def variation(cap: bool) -> float:
        sizes = [torch.tensor([len(p) for p in dirichlet(labels, 10, 0.1, s, cap=cap).positions]).float()
                 for s in range(40)]  # fmt: skip
        return float(torch.stack([s.std(correction=0) / s.mean() for s in sizes]).mean())

    assert 0.60 < variation(False) < 0.75
    assert 0.38 < variation(True) < 0.50
    for positions in dirichlet(labels, 10, 0.1, 0, cap=True).positions:
        counts = labels[positions].bincount(minlength=10)
        before_the_last = positions.numel() - int(counts[counts.nonzero().max()])
        assert before_the_last < 5000  # it was not full when it got its last class


def test_large_beta_is_even_and_small_beta_is_not():
    labels = torch.arange(10000) % 10
    even, skewed = (dirichlet(labels, 10, beta, seed=1) for beta in (1000.0, 0.1))
    spread = [
        torch.stack([labels[p].bincount(minlength=10) for p in d.positions]).float().std() for d in (even, skewed)
    ]
    assert spread[0] < 15 < 100 < spread[1]
    assert even.notes == ()


def test_draws_follow_the_seed():
    labels = torch.arange(500) % 10
    one, same, other = (dirichlet(labels, 5, 0.5, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.positions, same.positions, strict=True))
    assert any(len(a) != len(b) for a, b in zip(one.positions, other.positions, strict=True))


def test_iid_shares_have_the_same_mix():
    labels = torch.arange(1000) % 10
    parts = iid(labels, 7, seed=0).positions
    assert {len(p) for p in parts} <= {142, 143}
    for part in parts:
        counts = labels[part].bincount(minlength=10)
        assert int(counts.max() - counts.min()) <= 1


def test_lognormal_sizes_spread_with_sigma_and_keep_the_mix():
    labels = torch.arange(20000) % 10
    spreads = []
    for sigma in (0.0, 0.5, 1.5):
        parts = lognormal(labels, 20, sigma, seed=3).positions
        spreads.append(float(torch.tensor([len(p) for p in parts]).float().log().std()))
        counts = torch.stack([labels[p].bincount(minlength=10) for p in parts])
        assert int((counts.max(1).values - counts.min(1).values).max()) <= 2  # one at either end of a client's stretch
    assert spreads[0] < 1e-6
    assert 0.3 < spreads[1] < 0.8 < 1.0 < spreads[2] < 2.2
    one, same, other, elsewhere = (
        [len(p) for p in lognormal(labels, 20, 0.5, seed, name).positions]
        for seed, name in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    )
    assert one == same
    assert other != one != elsewhere


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 10), per_client=st.integers(1, 4), seed=st.integers(0, 1000))
def test_shards_give_few_classes(clients, per_client, seed):
    labels = torch.arange(400) % 10
    drawn = shards(labels, clients, per_client, seed)
    assert_every_image_once(drawn.positions, 400)
    width = 2 + 400 // (clients * per_client) // 40  # classes that one shard can touch
    assert all(len(labels[p].unique()) <= per_client * width for p in drawn.positions)


def test_more_shards_than_images():
    with pytest.raises(UsageError, match="needs 12 samples or more"):
        shards(torch.zeros(10, dtype=torch.int64), 4, 3, seed=0)


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 15), classes=st.integers(1, 7), seed=st.integers(0, 1000))
def test_classes_per_client(clients, classes, seed):
    labels = torch.arange(700) % 7
    if clients * classes < 7:
        with pytest.raises(UsageError, match="so that every sample has a client"):
            classes_per_client(labels, clients, classes, seed)
        return
    drawn = classes_per_client(labels, clients, classes, seed)
    assert_every_image_once(drawn.positions, 700)
    assert all(len(labels[p].unique()) == classes for p in drawn.positions)


def test_more_classes_per_client_than_there_are():
    with pytest.raises(UsageError, match="wanted 1 to 3"):
        classes_per_client(torch.arange(30) % 3, 5, 4, seed=0)


def test_from_file_lists_and_names(tmp_path):
    path = tmp_path / "partition.json"
    path.write_text(json.dumps([[3, 0], [1, 2, 4]]))
    drawn = from_file(path, 5)
    assert [p.tolist() for p in drawn.positions] == [[0, 3], [1, 2, 4]]
    assert (drawn.names, drawn.notes) == (None, ())
    path.write_text(json.dumps({"north": [0], "south": [1, 2]}))
    drawn = from_file(path, 5)
    assert drawn.names == ("north", "south")
    assert drawn.notes == ("partition_file leaves out 2 of 5 training samples",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a readable JSON file"),
        ("[]", "wanted a list of lists"),
        ("[[0], []]", "wanted a list of lists"),
        ("3", "wanted a list of lists"),
        ("[[0, 5]]", "5 is not a position below 5"),
        ("[[0, -1]]", "-1 is not a position"),
        ('[[0, "1"]]', "'1' is not a position"),
        ("[[true]]", "True is not a position"),
        ("[[0, 1], [1]]", "sample 1 given to client 0 and client 1"),
        ('{"a": [2, 2]}', "sample 2 given to a and a"),
    ],
)
def test_bad_partition_files(tmp_path, text, message):
    path = tmp_path / "partition.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        from_file(path, 5)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_partition_file(tmp_path):
    with pytest.raises(UsageError, match="not a readable JSON file"):
        from_file(tmp_path / "absent.json", 5)
