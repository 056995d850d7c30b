"""Protocols of a simulation: a held-out domain, several clients of a domain, unequal sizes, for every modality."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedchoir.data.protocol import clients_per_domain
from fedchoir.data.public import load_public
from fedchoir.data.scenario import DataOptions, Scenario, load_scenario
from fedchoir.utils.errors import UsageError

Load = Callable[..., Scenario]


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        arrays = {f"{split}_x": rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
                  for split, count in (("train", 24), ("test", 9))}  # fmt: skip
        np.savez(folder / f"{name}.npz", **arrays, train_y=np.arange(24) % 3, test_y=np.arange(9) % 3)


def write_texts(folder: Path) -> None:
    for name in ("news", "mail", "chat"):
        rows = [{"text": f"{name} word{i} end", "label": ("good", "bad")[i % 2]} for i in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_har(folder: Path) -> None:
    rng = np.random.default_rng(1)
    people, activities = np.divmod(np.arange(25 * 6 * 4) // 4, 6)
    series = rng.normal(size=(len(people), 9, 128)).astype(np.float16)
    np.savez(folder / "har.npz", x=series, y=activities, user=people)


def write_reviews(folder: Path) -> None:
    (folder / "amazon_reviews").mkdir()
    for name in ("books", "dvd", "electronics", "kitchen"):
        rows = [{"label": ("negative", "positive")[i % 2], "title": f"t{i}", "text": f"{name} {i}"} for i in range(60)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "amazon_reviews" / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


KINDS: dict[str, tuple[str, Callable[[Path], None] | None, str]] = {  # scenario, what it needs, a domain of it
    "digits-lite": ("digits-lite", None, "scene"),
    "own images": ("", write_images, "south"),
    "own texts": ("", write_texts, "mail"),
    "tables": ("heart", None, "switzerland"),
    "series": ("har", write_har, "people-6-10"),
    "series of single people": ("har-people", write_har, "person-7"),
    "text": ("amazon-reviews", write_reviews, "dvd"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Load, str]:
    """A function that loads one scenario, and the name of one of its domains."""
    name, write, domain = KINDS[request.param]
    if write is not None:
        write(tmp_path)
    small: dict[str, Any] = {"private": (40,)} if name == "digits-lite" else {}

    def load(seed: int = 0, **options: Any) -> Scenario:
        return load_scenario(name or str(tmp_path), root=tmp_path, seed=seed, options=DataOptions(**small, **options))

    return load, domain


def sizes(scenario: Scenario) -> dict[str, int]:
    return {client.name: len(client.train) for client in scenario.clients}


def test_nobody_trains_on_the_held_out_domain_and_everybody_is_tested_on_it(kind: tuple[Load, str]) -> None:
    load, domain = kind
    usual, without = load(), load(held_out=domain)
    assert list(without.tests) == list(usual.tests)
    assert torch.equal(without.tests[domain].inputs, usual.tests[domain].inputs)
    assert [c.name for c in without.clients] == [c.name for c in usual.clients if c.name != domain]
    assert [usual.clients[c.place].name for c in without.clients if c.place is not None] == [*sizes(without)]
    same = {client.name: client.train.inputs for client in usual.clients}
    assert all(
        torch.equal(client.train.inputs.nan_to_num(), same[client.name].nan_to_num()) for client in without.clients
    )
    assert f"{domain}: held out; no client has it, and all models are tested on it as an unseen domain" in without.notes
    if usual.clients[0].train.copies_are_leaks:
        own = next(client.train for client in usual.clients if client.name == domain)
        hidden = {*without.tests[domain].hashes(), *own.hashes()}
        assert hidden.isdisjoint(h for client in without.clients for h in client.train.hashes())


def test_several_clients_divide_a_domain(kind: tuple[Load, str]) -> None:
    load, _ = kind
    one = load()
    several = load(clients=2 * len(one.clients))
    assert [c.name for c in several.clients] == [f"{c.name}-{i}" for c in one.clients for i in (0, 1)]
    for client in one.clients:
        mine = [c.train for c in several.clients if c.domain == client.domain]
        assert sum(map(len, mine)) == len(client.train)
        assert abs(len(mine[0]) - len(mine[1])) <= 1
        rows = torch.cat([part.inputs.nan_to_num().flatten(1) for part in mine]).tolist()
        assert sorted(rows) == sorted(client.train.inputs.nan_to_num().flatten(1).tolist())


def test_unequal_sizes_add_up_and_follow_the_seed(kind: tuple[Load, str]) -> None:
    load, _ = kind
    one = load()
    count = 3 * len(one.clients)
    drawn, same, other = (sizes(load(clients=count, size_skew=1.0, seed=seed)) for seed in (0, 0, 1))
    assert drawn == same != other
    for client in one.clients:
        mine = [drawn[f"{client.name}-{i}"] for i in range(3)]
        assert sum(mine) == len(client.train)
        assert min(mine) >= 2
    equal = sizes(load(clients=count))
    assert max(drawn.values()) > max(equal.values())


def test_a_copy_of_a_test_image_of_the_held_out_domain_is_left_out(tmp_path: Path) -> None:
    write_images(tmp_path)
    arrays = dict(np.load(tmp_path / "north.npz"))
    arrays["train_x"][:2] = np.load(tmp_path / "south.npz")["test_x"][:2]
    np.savez(tmp_path / "north.npz", **arrays)
    usual, without = (load_scenario(str(tmp_path), options=DataOptions(held_out=name)) for name in (None, "south"))
    assert (sizes(usual)["north"], sizes(without)["north"], sizes(without)["west"]) == (24, 22, 24)
    assert set(without.tests["south"].hashes()).isdisjoint(without.clients[0].train.hashes())
    assert "north: 2 training samples left out, because south is tested on them" in without.notes


def test_every_client_of_the_held_out_domain_stays_away() -> None:
    scenario = load_scenario("digits-lite", options=DataOptions(held_out="print", clients=6, private=(40,)))
    assert [(c.name, c.place) for c in scenario.clients] == [("pen-0", 0), ("pen-1", 1), ("scene", 4), ("blend", 5)]
    options = DataOptions(held_out="print", centralized=True, private=(40,))
    assert {len(client.train) for client in load_scenario("digits-lite", options=options).clients} == {120}


def test_public_reviews_are_none_of_the_held_out_domain(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    like = load_scenario("amazon-reviews", root=tmp_path).clients[0].train
    whole, less = (load_public("amazon-reviews", like=like, root=tmp_path, held_out=name) for name in (None, "dvd"))
    (others,) = [set(whole.samples.hashes()) - set(less.samples.hashes())]
    assert len(less) == len(others) * 3
    assert set(less.samples.hashes()) < set(whole.samples.hashes())


def test_clients_are_spread_over_the_domains() -> None:
    assert clients_per_domain(None, ("a", "b")) == {"a": 1, "b": 1}
    assert clients_per_domain(1, ("a", "b")) == {"a": 1, "b": 0}
    assert list(clients_per_domain(11, ("a", "b", "c", "d")).values()) == [3, 3, 3, 2]


@pytest.mark.parametrize(
    ("scenario", "options", "line"),
    [
        ("digits", {"held_out": "office"},
         "held_out = 'office' is not possible: the domains of digits are mnist, usps, svhn, syn"),
        ("cifar10", {"held_out": "global"}, "held_out = 'global' is not possible with cifar10, which has one domain"),
        ("digits", {"held_out": "mnist", "clients": 1}, "held_out = 'mnist' is not possible: the only client would be"),
        ("digits", {"size_skew": 1.0}, "size_skew = 1 is not possible: no two clients share a domain; set clients"),
        ("digits", {"size_skew": 1.0, "clients": 5, "held_out": "mnist"}, "size_skew = 1 is not possible: no two"),
        ("cifar10", {"size_skew": 0.5}, "size_skew = 0.5 is not possible with partition = 'dirichlet', which"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(scenario: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as error:
        load_scenario(scenario, options=DataOptions(**options))  # before it looks for any data
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
