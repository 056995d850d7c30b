"""From a scenario's name to every client's private images and the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedchoir.data import partition
from fedchoir.data.centralized import pooled
from fedchoir.data.image.datasets import SPLIT_SEED, Domain, domain_from, load_domain
from fedchoir.data.image.files import Progress, read_folder, read_npz
from fedchoir.data.image.image_set import ImageSet, concatenate, image_hashes
from fedchoir.data.options import DataOptions
from fedchoir.data.registry import SCENARIOS, ScenarioInfo, client_paths, info
from fedchoir.data.splits import add_label_noise, apportion, held_out, stratified_sample, unseen
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

__all__ = [
    "SCENARIOS",
    "ClientData",
    "DataOptions",
    "Scenario",
    "ScenarioInfo",
    "info",
    "load_scenario",
]

GLOBAL = "global"  # name of the one test set under label skew


@dataclass(frozen=True)
class ClientData:
    """A participant's private images; ``home`` names its own test set in `Scenario.tests`."""

    name: str
    train: ImageSet
    domain: str


@dataclass(frozen=True)
class Scenario:
    """Everything that a federation is trained and tested on.

    Attributes:
        classes: names; labels everywhere are positions in it.
        clients: the participants.
        tests: test sets by name, in order: one per domain, or ``global`` under label skew.
        own_tests: under label skew each client's share of the test set, with its label distribution; else empty.
        top_k: accuracy counts a hit among this many highest logits.
        notes: what a reader of a result must know.
    """

    name: str
    classes: tuple[str, ...]
    clients: tuple[ClientData, ...]
    tests: dict[str, ImageSet]
    own_tests: dict[str, ImageSet] = field(default_factory=dict)
    top_k: int = 1
    notes: tuple[str, ...] = ()


def load_scenario(
    name: str,
    *,
    root: Path | None = None,
    seed: int = 0,
    options: DataOptions | None = None,
    progress: Progress | None = None,
) -> Scenario:
    """A scenario by name, or a user's folder by path; ``seed`` decides private draws, partition and label noise.

    >>> digits = load_scenario("digits-lite", options=DataOptions(private=(20,)))
    >>> [(client.name, len(client.train)) for client in digits.clients]
    [('pen', 20), ('print', 20), ('scene', 20), ('blend', 20)]
    """
    options = options or DataOptions()
    known = info(name)
    size = options.image_size
    if known.sources:
        domains = [load_domain(source, root, image_size=size, progress=progress) for source in known.sources]
    else:
        domains = _user_domains(Path(known.name), size, progress)
    domains, classes, notes = unify_classes(domains)
    notes += tuple(note for domain in domains for note in domain.notes)
    build = _label_skew if known.kind == "label-skew" else _domain_shift
    scenario = build(known, domains, classes, seed, options)
    scenario = _with_noise(replace(scenario, notes=notes + scenario.notes), seed, options)
    return pooled(scenario) if options.centralized else scenario


def _user_domains(folder: Path, size: int, progress: Progress | None) -> list[Domain]:
    """One domain for each sub-folder or `.npz` file of a user's folder."""
    domains = []
    for name, path in client_paths(folder).items():
        raw = read_npz(path, size) if path.is_file() else read_folder(path, size, progress)
        domains.append(domain_from(raw, name))
    return domains


def unify_classes(domains: list[Domain]) -> tuple[list[Domain], tuple[str, ...], tuple[str, ...]]:
    """Give all domains the union of their class names; returns them, the names, and a note if names differed."""
    if len({domain.classes for domain in domains}) == 1:
        return domains, domains[0].classes, ()
    names = {name for domain in domains for name in domain.classes}
    classes = tuple(sorted(names, key=(lambda n: (int(n), n)) if all(map(str.isdecimal, names)) else None))
    position = {name: i for i, name in enumerate(classes)}
    unified = []
    for domain in domains:
        table = torch.tensor([position[name] for name in domain.classes])
        train, test = (replace(part, labels=table[part.labels]) for part in (domain.train, domain.test))
        unified.append(replace(domain, train=train, test=test, classes=classes))
    lacking = [f"{d.name} has {len(set(d.classes))}" for d in domains if set(d.classes) != names]
    note = f"class names differ between clients: {len(classes)} in all, {', '.join(lacking)}"
    return unified, classes, (note,) if lacking else ()


def _domain_shift(
    known: ScenarioInfo, domains: list[Domain], classes: tuple[str, ...], seed: int, options: DataOptions
) -> Scenario:
    wanted = _private_sizes(known, options, len(domains))
    shares = _clients_per_domain(options.clients, len(domains))
    clients: list[ClientData] = []
    notes: tuple[str, ...] = ()
    tests = {}
    for domain, size, share in zip(domains, wanted, shares, strict=True):
        train, test, said = _train_and_test(domain, options)
        tests[domain.name] = test
        if not share:
            notes += (*said, f"{domain.name}: no client holds it; it is only tested on")
            continue
        count = _count(size, len(domain.train))
        private, more = _private(domain.name, train, count, options.private is not None, seed)
        clients += _share_out(domain.name, private, share, seed)
        notes += said + more
    return Scenario(known.name, classes, tuple(clients), tests, {}, known.top_k, notes)


def _train_and_test(domain: Domain, options: DataOptions) -> tuple[ImageSet, ImageSet, tuple[str, ...]]:
    """A domain's training pool and test set; no image of the one is in the other unless whole-folder is asked for."""
    if options.test_split == "whole-folder" and not domain.own_test:
        whole = concatenate(domain.train, domain.test)
        by_class = whole.labels.argsort(stable=True)
        note = (
            f"{domain.name}: TESTED ON THE WHOLE FOLDER, training images among them, and trained without images of its "
            "last classes (test_split='whole-folder')"
        )
        return whole.subset(by_class[: len(domain.train)]), whole, (note,)
    notes: tuple[str, ...] = ()
    if options.test_split == "whole-folder":
        notes = (f"{domain.name}: test_split='whole-folder' changes nothing, it has a test part of its own",)
    train, test = domain.train, domain.test
    keep = unseen(train, test)
    if copies := int((~keep).sum()):
        train = train.subset(keep)
        notes += (f"{domain.name}: {copies} training images left out, because they are in the test set too",)
    if options.test_split == "validation":
        train, test = held_out(train, generator(SPLIT_SEED, "validation", domain.name))
        notes += (f"{domain.name}: tested on {len(test)} held-back training images (test_split='validation')",)
    return train, test, notes


def _private_sizes(known: ScenarioInfo, options: DataOptions, domains: int) -> Sequence[int | float | None]:
    sizes = options.private or known.private
    if sizes is None:
        return [None] * domains
    if len(sizes) not in (1, domains):
        raise UsageError(f"private: {len(sizes)} values for {domains} domains ({', '.join(known.domains)})")
    return list(sizes) * (domains // len(sizes))


def _count(wanted: int | float | None, images: int) -> int | None:
    """A number of images from a count or a fraction of all training images; None means all."""
    if isinstance(wanted, float):
        return max(1, round(wanted * images)) if wanted < 1 else None
    return wanted


def _private(
    name: str, pool: ImageSet, count: int | None, explicit: bool, seed: int
) -> tuple[ImageSet, tuple[str, ...]]:
    """``count`` images of the pool (None: all), classes in proportion."""
    if not len(pool):
        raise UsageError(f"{name}: no training images are left")
    if count is None or count == len(pool):
        return pool, ()
    if count > len(pool):
        if explicit:
            raise UsageError(f"private: {count} images wanted of {name}, which has {len(pool)}")
        return pool, (f"{name}: all {len(pool)} training images taken, {count} in the papers",)
    return pool.subset(stratified_sample(pool.labels, count, generator(seed, "private", name))), ()


def _clients_per_domain(clients: int | None, domains: int) -> list[int]:
    """How many clients every domain has: as even as possible, earlier domains first."""
    total = domains if clients is None else clients
    return [total // domains + (position < total % domains) for position in range(domains)]


def _share_out(name: str, private: ImageSet, share: int, seed: int) -> list[ClientData]:
    """A domain's private images for its clients: disjoint, equal shares."""
    if share == 1:
        return [ClientData(name, private, name)]
    if share > len(private):
        raise UsageError(f"clients: {share} clients for the {len(private)} private images of {name}")
    parts = partition.iid(private.labels, share, seed).parts
    return [ClientData(f"{name}-{i}", private.subset(part), name) for i, part in enumerate(parts)]


def _label_skew(
    known: ScenarioInfo, domains: list[Domain], classes: tuple[str, ...], seed: int, options: DataOptions
) -> Scenario:
    (domain,) = domains
    pool, test, notes = _train_and_test(replace(domain, name=known.name), options)
    if options.partition == "file":
        drawn = _partition_from_file(domain.train, pool, options)
        pool = domain.train  # a file's positions count in the set as it lies on disk
    else:
        count = _count(_private_sizes(known, options, 1)[0], len(domain.train))
        pool, more = _private(known.name, pool, count, options.private is not None, seed)
        notes += more
        drawn = _draw_partition(pool.labels, options.clients or int(known.defaults["clients"]), seed, options)
    names = drawn.names or tuple(f"client-{i}" for i in range(len(drawn.parts)))
    clients = tuple(ClientData(name, pool.subset(part), GLOBAL) for name, part in zip(names, drawn.parts, strict=True))
    own = _own_tests(test, [client.train.labels for client in clients], len(classes), seed)
    notes += drawn.notes
    return Scenario(
        known.name, classes, clients, {GLOBAL: test}, dict(zip(names, own, strict=True)), known.top_k, notes
    )


def _draw_partition(labels: Tensor, clients: int, seed: int, options: DataOptions) -> partition.Partition:
    if options.partition == "dirichlet":
        return partition.dirichlet(labels, clients, options.beta, seed)
    if options.partition == "shards":
        return partition.shards(labels, clients, options.shards_per_client, seed)
    if options.partition == "classes":
        return partition.classes_per_client(labels, clients, options.classes_per_client, seed)
    return partition.iid(labels, clients, seed)


def _partition_from_file(train: ImageSet, pool: ImageSet, options: DataOptions) -> partition.Partition:
    """The file's partition of ``train``, less the images that are not in ``pool`` (copies of test images)."""
    assert options.partition_file is not None
    if options.private is not None:
        raise UsageError("private: a partition_file already says which images are used; give one of the two")
    drawn = partition.from_file(options.partition_file, len(train))
    if options.clients not in (None, len(drawn.parts)):
        raise UsageError(f"clients: {options.clients} given, but partition_file has {len(drawn.parts)}")
    if len(pool) == len(train):
        return drawn
    known = set(image_hashes(pool.images))
    keep = torch.tensor([h in known for h in image_hashes(train.images)])
    return replace(drawn, parts=tuple(part[keep[part]] for part in drawn.parts))


def _own_tests(test: ImageSet, labels: list[Tensor], classes: int, seed: int) -> list[ImageSet]:
    """The test set dealt out like the training set: of every class, each client's share of its training images.

    A client whose shares all round to nothing gets one image of its most frequent class (of any, if the test set
    lacks it), so that it can be tested.
    """
    counts = torch.stack([label.bincount(minlength=classes) for label in labels])  # K×C
    parts: list[list[Tensor]] = [[] for _ in labels]
    random = generator(seed, "own tests")
    for label in range(classes):
        members = (test.labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=random)]
        if not len(members) or not int(counts[:, label].sum()):
            continue
        for part, chunk in zip(parts, members.split(apportion(counts[:, label], len(members)).tolist()), strict=True):
            part.append(chunk)
    own = []
    for part, count in zip(parts, counts, strict=True):
        index = torch.cat(part) if part else torch.empty(0, dtype=torch.int64)
        if not len(index):
            likely = (test.labels == count.argmax()).nonzero().flatten()
            index = likely[:1] if len(likely) else torch.zeros(1, dtype=torch.int64)
        own.append(test.subset(index.sort().values))
    return own


def _with_noise(scenario: Scenario, seed: int, options: DataOptions) -> Scenario:
    """Make a share of every client's training labels wrong."""
    if not options.label_noise:
        return scenario
    clients, flipped = [], 0
    for client in scenario.clients:
        random = generator(seed, "label noise", client.name)
        train, flips = add_label_noise(
            client.train, len(scenario.classes), options.label_noise, options.noise_type, random
        )
        clients.append(replace(client, train=train))
        flipped += flips
    note = f"label noise: {flipped} training labels made wrong ({options.noise_type}, {options.label_noise:g})"
    return replace(scenario, clients=tuple(clients), notes=(*scenario.notes, note))
