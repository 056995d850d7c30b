"""What a site that joins a federation will send, in plain words: from the federation's file and the method's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedchoir import methods
from fedchoir.compression.chain import parse
from fedchoir.compression.wire import sizes as compressed_sizes
from fedchoir.core.exchange import state_shapes
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.script import ActionName, action_sequences
from fedchoir.core.wire import uplink_traits
from fedchoir.deploy.config import OWN, FederationFile
from fedchoir.deploy.site_data import LocalSite
from fedchoir.methods.base import Method
from fedchoir.payload import KEPT, MODEL, MODULE, SCALAR_BYTES, Declaration, Payload, declared_by, zero_payload
from fedchoir.privacy.dp import epsilon
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.sizes import readable_bytes

ASSUMED_TRAIN = 10_000  # training samples of a site; some methods check that they suffice
ASSUMED_CLASSES = tuple(map(str, range(10)))

REVEALS = {
    "weights": "your model's weights: the most. Whoever has them can guess which samples were in your training set "
    "(membership inference), and from the change of a single round even samples can be reconstructed",
    "public outputs": "your model's outputs on public samples: enough to distil a copy of your model and to guess "
    "training samples with it, less well. Your private samples enter them through the trained model alone",
    "public outputs with private statistics": "your model's outputs on public samples, together with numbers computed "
    "from your private samples, such as your accuracy at each class, or which public samples resemble yours: which "
    "classes you have and how your samples are distributed, beside what the outputs reveal",
    "synthetic samples": "synthetic samples, condensed from your private ones: which classes you have, and what the "
    "samples of a class look like on average; of a class with few samples, single ones may be recognisable",
    "class statistics": "numbers for each of your classes, such as mean features or counts: which classes you have, "
    "and for a class with one sample, that sample's features",
    "statistics": "numbers computed from your private samples: they describe all of them together, and a few samples "
    "well if you have only a few",
}


@dataclass(frozen=True)
class Sent:
    """One thing that leaves a site with an exchange."""

    exchange: str
    name: str
    kind: str  # a key of `REVEALS`
    shape: str
    bytes: int
    at_most: bool = False  # the number of bytes depends on the values


def method_of(
    federation: FederationFile,
    model: str,
    classes: Sequence[str],
    public_size: int,
    inputs: InputSpec,
    epochs: int | None = None,
) -> Method:
    """The federation's method, as the site will run it. Sites whose model the file leaves open have the site's own.

    Args:
        epochs: local epochs, if not those of the file.
    """
    plan = federation.plan()
    params = plan.params if epochs is None else plan.params.model_copy(update={"local_epochs": epochs})
    clients = tuple(ClientInfo(site.name, site.model or model, ASSUMED_TRAIN, 1, OWN) for site in federation.sites)
    spec = FederationSpec(
        classes=federation.classes or tuple(classes), clients=clients, rounds=plan.rounds,
        seed=plan.experiment.seed, public_size=public_size, inputs=inputs, compress=federation.compress or "",
    )  # fmt: skip
    return methods.get(federation.method, plan.public)(params, spec)


def open_method(federation: FederationFile, model: str) -> Method:
    """The method for a site whose data is not known: images, and ten classes if the file names none."""
    plan = federation.plan()
    size = plan.params.public_size if plan.public else 0
    return method_of(federation, model, ASSUMED_CLASSES, size, InputSpec.image(plan.params.image_size))


def site_method(federation: FederationFile, site: LocalSite) -> Method:
    """The method for a site with its data."""
    plan = federation.plan()
    domain = site.domain(plan.params)
    size = plan.params.public_size if plan.public else 0
    return method_of(federation, site.model, domain.classes, size, domain.train.input_spec)


def sent_each_round(method: Method, index: int = 0) -> Iterator[list[Sent]]:
    """What client ``index`` sends in each round."""
    everyone = method.params.fraction >= 1
    for number, sequence in enumerate(action_sequences(method)):
        takes_part = everyone or index in method.spec.round(number, method.params).clients
        exchanges = [action for action in sequence if action.kind == "exchange"] if takes_part else []
        yield [sent for action in exchanges for sent in _sent(method, action, index)]


def _sent(method: Method, action: ActionName, index: int) -> Iterator[Sent]:
    function = getattr(method, action.function)
    declared = declared_by(function)
    model, modules = state_shapes(method, function, index)
    free = method.largest_dims
    dims = {**free, **method.spec.dims, **method.dims, **dict(action.dims)}
    for batch in action.batches or (None,):
        own = dims | ({"B": batch[-1]} if batch else {})
        payload = zero_payload(declared, own, model, modules)
        sizes = _sizes(method, function, payload, repeats=batch is None)
        for name, (first, shape) in _described(declared, free).items():
            part = payload.only(name)
            kind = _kind(first, shape, bool(batch), name in method.with_private_statistics)
            if name in method.synthetic_samples:
                kind = "synthetic samples"
            if name == first:
                size = sum(sizes[entry] for entry in [*part, *part.scalars])
                yield Sent(action.function, name, kind, _shape(part, name), size, _zstd(method))
            else:
                text = f"{len(part)} tensors, whose sizes depend on the values"
                yield Sent(action.function, name, kind, text, part.nbytes, at_most=True)


def _described(declared: Declaration, free: Mapping[str, int]) -> dict[str, tuple[str, str]]:
    """What is described as one thing, with its first entry and that one's declaration. Entries of a state dict that
    has free dimensions belong together: only their sum is known."""
    sent = {name: shape for name, shape in declared.items() if shape != KEPT}
    open_roots = {name.partition("/")[0] for name, shape in sent.items() if any(s in free for s in shape.split())}
    together: dict[str, tuple[str, str]] = {}
    for name, shape in sent.items():
        root = name.partition("/")[0]
        together.setdefault(root if root in open_roots else name, (name, shape))
    return together


def _sizes(method: Method, function: Callable[..., Any], payload: Payload, *, repeats: bool) -> dict[str, int]:
    """Bytes that travel of every entry: the most, if zstd packs them."""
    chain, scalars = parse(method.spec.compress).up, dict.fromkeys(payload.scalars, SCALAR_BYTES)
    if chain is None:
        return {**{name: t.nbytes for name, t in payload.items()}, **scalars}
    return {**compressed_sizes(payload, chain, uplink_traits(function, repeats=repeats)), **scalars}


def _zstd(method: Method) -> bool:
    chain = parse(method.spec.compress).up
    return chain is not None and chain.zstd


def _kind(name: str, shape: str, public: bool, private: bool) -> str:
    if shape in (MODEL, MODULE) or "/" in name:  # an entry of a state dict
        return "weights"
    if public:
        return "public outputs with private statistics" if private else "public outputs"
    return "class statistics" if shape.split(":")[0].split(" ")[0] == "C" else "statistics"


def _shape(payload: Payload, name: str) -> str:
    if name in payload.scalars:
        return "one number"
    if name in payload:
        return "×".join(map(str, payload[name].shape)) or "one number"
    return f"{sum(t.numel() for t in payload.values()):,} numbers in {len(payload)} tensors"


def describe_federation(federation: FederationFile, method: Method) -> Iterator[str]:
    """What a site sends, who sees it, what it may reveal, and which protections are on."""
    names = ", ".join(site.name for site in federation.sites)
    yield f"{method.name}, {federation.rounds} rounds, {len(federation.sites)} sites: {names}"
    yield f"  computed for {method.spec.inputs} samples and {len(method.spec.classes)} classes"
    if unnamed := [site.name for site in federation.sites if site.model is None]:
        yield f"  as if your model were also that of {', '.join(unnamed)}: the file does not name theirs"
        if method.heterogeneous and method.params.average == "never":
            yield "  and no weights are averaged: the file would have to name all models, or to set average"
    rounds = list(sent_each_round(method))
    yield ""
    yield "What your site sends to the server"
    yield "  before the run: its name and model, numbers of training and test samples, class names,"
    yield "    the shape of samples, digest and size of its public set, versions of packages, free disk space"
    if rounds[0] != rounds[-1]:
        yield from _describe_round("in the first round", rounds[0])
    yield from _describe_round("in every round" if rounds[0] == rounds[-1] else "in a later round", rounds[-1])
    total = sum(sent.bytes for sent in _all(rounds))
    most = "at most " if any(sent.at_most for sent in _all(rounds)) else ""
    yield (
        f"  in the whole run: {most}{readable_bytes(total)} of payloads" if total else "  in the whole run: no payload"
    )
    yield from _describe_compression(method)
    yield f"  {_metrics(federation, method)}"
    yield ""
    yield "Who can see it"
    yield f"  {_server_sees(federation)}"
    yield "  other sites: what the server makes of all payloads; together they can compute yours from a mean" + (
        "" if not method.requires_individual_payloads(method.params)
        else f"; except: {method.requires_individual_payloads(method.params)}"
    )  # fmt: skip
    yield "  the network: nobody (TLS)" if not federation.insecure else "  the network: everybody (insecure = true)"
    yield ""
    yield "What it may reveal"
    kinds = list(dict.fromkeys(sent.kind for sent in _all(rounds)))
    for kind in kinds:
        yield f"  {REVEALS[kind]}"
    if not kinds:
        yield "  the sizes, class names and metrics above"
    yield ""
    yield "Protections in this file"
    yield from (f"  {line}" for line in _protections(federation, method))


def _describe_compression(method: Method) -> Iterator[str]:
    chains = parse(method.spec.compress)
    if chains.up is not None:
        yield f"  compressed with {chains.up}: the sizes above are those that travel; it hides nothing"
    if chains.down is not None:
        yield f"  what the server sends is compressed with {chains.down}"


def _describe_round(when: str, sent: list[Sent]) -> Iterator[str]:
    yield f"  {when}:" + ("" if sent else " no payload")
    for one, times in Counter(sent).items():
        each = f"{times} times " if times > 1 else ""
        most = "at most " if one.at_most else ""
        size = f"{most}{readable_bytes(times * one.bytes)}"
        yield f"    {one.exchange}: {one.name}, {each}{one.shape}, {size} ({one.kind})"


def _all(rounds: list[list[Sent]]) -> Iterator[Sent]:
    return (sent for each in rounds for sent in each)


def _metrics(federation: FederationFile, method: Method) -> str:
    if federation.secure or method.params.dp_noise or method.payload_noise(method.params):
        return "training losses and accuracies stay at your site (a site's policy may change that: metrics)"
    return "with every round: training losses, and the accuracy on your own test samples"


def _server_sees(federation: FederationFile) -> str:
    if federation.secure:
        lies = "also if it lies about who replied" if federation.secure == "strict" else "while it follows the protocol"
        return (
            f"the server's operator: only sums over sites, {lies}; docs/privacy.md lists how a hostile server could "
            "still single out your payload"
        )
    return "the server's operator: every payload of your site, by itself"


def _protections(federation: FederationFile, method: Method) -> Iterator[str]:
    yield {
        False: "secure aggregation: off",
        True: "secure aggregation: on",
        "strict": "secure aggregation: strict, also against a server that lies about who replied",
    }[federation.secure]
    p = method.params
    if p.dp_noise:
        limit = f", the run stops at ε = {p.dp_epsilon:g}" if p.dp_epsilon else ""
        yield f"differential privacy: noise {p.dp_noise:g}, clipping at {p.dp_clip:g}, δ = {p.dp_delta:g}{limit}"
    elif noise := method.payload_noise(p):
        cost = epsilon(noise, 1.0, 1, p.dp_delta)
        yield f"differential privacy: one release with noise {noise:g}, ε = {cost:.2f} at δ = {p.dp_delta:g}"
    else:
        why = method.dp_obstacle(p)
        yield "differential privacy: off" + (f" (not possible: {why})" if why else "")
    yield f"robust aggregation: {'off' if p.robust == 'mean' else p.robust}"
    yield "TLS and one key per site: " + ("OFF" if federation.insecure else "on")
    yield "your node refuses what is not in this file: fedchoir node --federation FILE, or --policy"
