"""Scenarios: every client's private samples and the test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedchoir.data import partition
from fedchoir.data.domain import SPLIT_SEED, Domain, Progress
from fedchoir.data.label_skew import draw_partition, own_tests, partition_from_file
from fedchoir.data.modalities import reader
from fedchoir.data.options import DataOptions
from fedchoir.data.protocol import check_protocol, clients_per_domain
from fedchoir.data.registry import SCENARIOS, ScenarioInfo, client_paths, info
from fedchoir.data.samples import Samples
from fedchoir.data.splits import add_label_noise, held_out, stratified_sample, unseen
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import generator

__all__ = ["SCENARIOS", "ClientData", "DataOptions", "Scenario", "ScenarioInfo", "info", "load_scenario"]

GLOBAL = "global"  # name of the one test set under label skew


@dataclass(frozen=True)
class ClientData:
    """A client's private samples; ``domain`` is the name of its own test set in `Scenario.tests`. The samples of
    ``validation`` were held back from training. ``place`` is the client's position among all clients of the scenario,
    if a domain is held out, so that it keeps its model."""

    name: str
    train: Samples
    domain: str
    validation: Samples | None = None
    place: int | None = None


@dataclass(frozen=True)
class Scenario:
    """The private data of all clients and the test sets.

    Attributes:
        classes: names; labels are positions in it.
        tests: test sets by name: one per domain, or ``global`` under label skew.
        own_tests: under label skew each client's share of the test set, with its label distribution; else empty.
        top_k: for top-k accuracy.
        notes: facts that qualify a result.
    """

    name: str
    classes: tuple[str, ...]
    clients: tuple[ClientData, ...]
    tests: dict[str, Samples]
    own_tests: dict[str, Samples] = field(default_factory=dict)
    top_k: int = 1
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> InputSpec:
        """What the clients' models receive."""
        return self.clients[0].train.input_spec


def load_scenario(
    name: str,
    *,
    root: Path | None = None,
    seed: int = 0,
    options: DataOptions | None = None,
    progress: Progress | None = None,
    strict: bool = True,
) -> Scenario:
    """Load a scenario by name, or a user's folder; ``seed`` draws private samples, partition and label noise.

    With ``strict``, a domain with fewer samples than the option ``private`` asks for is an error, else a note.

    >>> digits = load_scenario("digits-lite", options=DataOptions(private=(20,)))
    >>> [(client.name, len(client.train)) for client in digits.clients]
    [('pen', 20), ('print', 20), ('scene', 20), ('blend', 20)]
    """
    options = options or DataOptions()
    known = info(name, options)
    check_protocol(known, options)
    if known.sources:
        domains = reader(known.modality).load_domains(known, root, options, progress)
    else:
        domains = reader(known.modality).read_clients(client_paths(Path(known.name)), options, progress)
    domains, classes, notes = unify_classes(domains)
    notes += tuple(note for domain in domains for note in domain.notes)
    _check_inputs(domains)
    build = _label_skew if known.kind == "label-skew" else _domain_shift
    scenario = build(known, domains, classes, seed, options, strict)
    scenario = _with_noise(replace(scenario, notes=notes + scenario.notes), seed, options)
    return _centralized(scenario) if options.centralized else scenario


def _check_inputs(domains: list[Domain]) -> None:
    first, *others = domains
    for other in others:
        if other.train.input_spec != first.train.input_spec:
            raise UsageError(
                f"{first.name} has samples of {first.train.input_spec} and {other.name} of {other.train.input_spec}; "
                "all clients need samples of one shape"
            )


def unify_classes(domains: list[Domain]) -> tuple[list[Domain], tuple[str, ...], tuple[str, ...]]:
    """Relabel all domains by the union of their class names; returns them, the names, and a note if names differ."""
    if len({domain.classes for domain in domains}) == 1:
        return domains, domains[0].classes, ()
    names = {name for domain in domains for name in domain.classes}
    classes = tuple(sorted(names, key=(lambda n: (int(n), n)) if all(map(str.isdecimal, names)) else None))
    position = {name: i for i, name in enumerate(classes)}
    unified = []
    for domain in domains:
        table = torch.tensor([position[name] for name in domain.classes])
        train, test = (replace(split, labels=table[split.labels]) for split in (domain.train, domain.test))
        unified.append(replace(domain, train=train, test=test, classes=classes))
    lacking = [f"{d.name} has {len(set(d.classes))}" for d in domains if set(d.classes) != names]
    note = f"class names differ between clients: {len(classes)} in total, {', '.join(lacking)}"
    return unified, classes, (note,) if lacking else ()


def _domain_shift(
    known: ScenarioInfo, domains: list[Domain], classes: tuple[str, ...], seed: int, options: DataOptions, strict: bool
) -> Scenario:
    sizes = _private_sizes(known, options, len(domains))
    counts = clients_per_domain(options.clients, [domain.name for domain in domains])
    splits = {domain.name: _train_and_test(domain, options) for domain in domains}
    clients: list[ClientData] = []
    notes: tuple[str, ...] = ()
    place = 0
    for domain, size in zip(domains, sizes, strict=True):
        name, count = domain.name, counts[domain.name]
        train, _, more = splits[name]
        notes += more
        place += count
        if name == options.held_out:
            notes += (f"{name}: held out; no client has it, and all models are tested on it as an unseen domain",)
            continue
        if not count:
            notes += (f"{name}: no client has it; it is only tested on",)
            continue
        if options.held_out is not None:
            train, more = _without_copies(name, train, splits[options.held_out][1], options.held_out)
            notes += more
        wanted = _count(size, len(domain.train))
        private, more = _private(name, train, wanted, strict and options.private is not None, seed)
        divided, even_more = _divide(name, private, count, seed, options.size_skew)
        if options.held_out is not None:
            divided = [replace(client, place=place - count + i) for i, client in enumerate(divided)]
        clients += divided
        notes += more + even_more
    tests = {name: test for name, (_, test, _) in splits.items()}
    return Scenario(known.name, classes, tuple(clients), tests, {}, known.top_k, notes)


def _without_copies(name: str, train: Samples, test: Samples, tested: str) -> tuple[Samples, tuple[str, ...]]:
    """The training samples of a domain that are not in the test set of the held-out one."""
    keep = unseen(train, test) if train.copies_are_leaks else torch.ones(len(train), dtype=torch.bool)
    if not (copies := int((~keep).sum())):
        return train, ()
    return train.subset(keep), (f"{name}: {copies} training samples left out, because {tested} is tested on them",)


def _train_and_test(domain: Domain, options: DataOptions) -> tuple[Samples, Samples, tuple[str, ...]]:
    """A domain's training and test samples. They are disjoint, except with test_split = whole-folder."""
    if options.test_split == "whole-folder" and not domain.own_test:
        whole = domain.train.joined(domain.test)
        by_class = whole.labels.argsort(stable=True)
        note = (
            f"{domain.name}: TESTED ON THE WHOLE FOLDER, training images included, and trained without images of its "
            "last classes (test_split='whole-folder')"
        )
        return whole.subset(by_class[: len(domain.train)]), whole.for_every_client(), (note,)
    notes: tuple[str, ...] = ()
    if options.test_split == "whole-folder":
        notes = (f"{domain.name}: test_split='whole-folder' has no effect: it has a test split",)
    train, test = domain.train, domain.test
    keep = unseen(train, test) if train.copies_are_leaks else torch.ones(len(train), dtype=torch.bool)
    if copies := int((~keep).sum()):
        train = train.subset(keep)
        notes += (f"{domain.name}: {copies} training samples left out, because they are also in the test set",)
    if options.test_split == "validation":
        train, test = held_out(train, generator(SPLIT_SEED, "validation", domain.name))
        notes += (f"{domain.name}: tested on {len(test)} held-back training samples (test_split='validation')",)
    return train, test, notes


def _private_sizes(known: ScenarioInfo, options: DataOptions, domains: int) -> Sequence[int | float | None]:
    sizes = options.private or known.private
    if sizes is None:
        return [None] * domains
    if len(sizes) not in (1, domains):
        raise UsageError(f"private: {len(sizes)} values for {domains} domains ({', '.join(known.domains)})")
    return list(sizes) * (domains // len(sizes))


def _count(wanted: int | float | None, images: int) -> int | None:
    """A number of samples from a count or a fraction of all training samples; None: all."""
    if isinstance(wanted, float):
        return max(1, round(wanted * images)) if wanted < 1 else None
    return wanted


def _private(name: str, pool: Samples, count: int | None, explicit: bool, seed: int) -> tuple[Samples, tuple[str, ...]]:
    """``count`` samples of the pool (None: all), classes in proportion."""
    if not len(pool):
        raise UsageError(f"{name}: no training samples are left")
    if count is None or count == len(pool):
        return pool, ()
    if count > len(pool):
        if explicit:
            raise UsageError(f"private: {count} images wanted of {name}, which has {len(pool)}")
        return pool, (f"{name}: all {len(pool)} training samples used, {count} in the papers or their code",)
    return pool.subset(stratified_sample(pool.labels, count, generator(seed, "private", name))), ()


def _divide(
    name: str, private: Samples, clients: int, seed: int, size_skew: float
) -> tuple[list[ClientData], tuple[str, ...]]:
    """Divide a domain's private samples among its clients: equally, or with unequal sizes."""
    if clients == 1:
        return [ClientData(name, private, name)], ()
    if clients > len(private):
        raise UsageError(f"clients: {clients} clients for the {len(private)} private samples of {name}")
    if size_skew:
        drawn = partition.lognormal(private.labels, clients, size_skew, seed, name)
    else:
        drawn = partition.iid(private.labels, clients, seed)
    divided = [ClientData(f"{name}-{i}", private.subset(index), name) for i, index in enumerate(drawn.positions)]
    return divided, tuple(f"{name}: {note}" for note in drawn.notes)


def _label_skew(
    known: ScenarioInfo, domains: list[Domain], classes: tuple[str, ...], seed: int, options: DataOptions, strict: bool
) -> Scenario:
    (domain,) = domains
    pool, test, notes = _train_and_test(replace(domain, name=known.name), options)
    if options.partition == "file":
        drawn = partition_from_file(domain.train, pool, options)
        pool = domain.train  # the file's positions refer to the complete training split
    else:
        count = _count(_private_sizes(known, options, 1)[0], len(domain.train))
        pool, more = _private(known.name, pool, count, strict and options.private is not None, seed)
        notes += more
        drawn = draw_partition(pool.labels, options.clients or int(known.defaults["clients"]), seed, options)
    names = drawn.names or tuple(f"client-{i}" for i in range(len(drawn.positions)))
    subsets = [pool.subset(index) for index in drawn.positions]
    own = own_tests(test, [subset.labels for subset in subsets], len(classes), seed)
    return Scenario(
        known.name,
        classes,
        tuple(ClientData(name, subset, GLOBAL) for name, subset in zip(names, subsets, strict=True)),
        {GLOBAL: test},
        dict(zip(names, own, strict=True)),
        known.top_k,
        notes + drawn.notes,
    )


def _with_noise(scenario: Scenario, seed: int, options: DataOptions) -> Scenario:
    """Flip a share of every client's training labels."""
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


def _centralized(scenario: Scenario) -> Scenario:
    """Give every client the private samples of all clients, without those that are in any test set."""
    first, *others = (client.train for client in scenario.clients)
    train = first.joined(*others)
    total = len(train)
    for test in scenario.tests.values() if train.copies_are_leaks else ():
        train = train.subset(unseen(train, test))
    note = f"CENTRALIZED: every client trains on the {len(train)} private samples of all clients"
    if left_out := total - len(train):
        note += f"; {left_out} more are left out, because they are in a test set"
    clients = tuple(replace(client, train=train) for client in scenario.clients)
    return replace(scenario, clients=clients, notes=(*scenario.notes, note))
