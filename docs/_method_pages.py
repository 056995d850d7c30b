"""The generated pages of methods: an overview with a map of all, and one page for each."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from _text import cell, shown, text

from fedchoir import losses, methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.script import action_sequences
from fedchoir.core.settings import Settings
from fedchoir.experiments.config import make_params
from fedchoir.experiments.profiles import not_given
from fedchoir.methods.base import Method
from fedchoir.methods.fedbn import FedBN
from fedchoir.methods.shared_features import SharedFeatures
from fedchoir.methods.sliced_model import SlicedModel
from fedchoir.payload import KEPT, MODEL, MODULE, declared_by
from fedchoir.reporting.listings import effective_options
from fedchoir.utils.errors import UsageError

EXAMPLE = FederationSpec(
    classes=tuple(map(str, range(10))),
    clients=tuple(ClientInfo(f"client {k}", "resnet10", 10_000, 1, f"client {k}") for k in range(4)),
    rounds=40,
    seed=0,
    public_size=5000,
)
"""A federation for declarations that depend on it."""

LEFT_OUT = """## Left out

Baselines of the five papers that are not here, and why:

- **FedIOD** (a baseline of FedCT): it distils with inputs that a generator makes. Neither FedCT's text nor public code
  gives its losses and constants.
- **FedFSA** (a baseline of FBCL): it aligns features with the text embeddings of the class names by CLIP. The released
  program has seven variants of its second stage, and it is not known which one the published numbers belong to.
  `fedproto` and `fedproc` also draw features to one prototype per class; there the clients compute it.
- **CCST**: clients exchange the styles of their images, which a pretrained encoder and decoder transfer. Such weights
  cannot be part of this package. `private_augment=recolor` changes colors without any exchange.
"""

KINDS = (
    ("For different architectures, with a public set", lambda cls: cls.heterogeneous and cls.needs_public),
    ("For different architectures, without a public set", lambda cls: cls.heterogeneous),
    ("For one architecture", lambda cls: True),
)


def slug(name: str) -> str:
    return name.replace("+", "-plus")


def overview() -> str:
    rows = {title: [] for title, _ in KINDS}
    for name, cls in methods.registry().items():
        title = next(title for title, fits in KINDS if fits(cls))
        rows[title].append(f"| [`{name}`]({slug(name)}.md) | {cell(cls.title)} | {cell(cls.paper or '–')} |")
    tables = [f"## {title}\n\n| method | what it does | paper |\n|---|---|---|\n" + "\n".join(lines)
             for title, lines in rows.items() if lines]  # fmt: skip
    introduction = (
        "Each method is one file in `src/fedchoir/methods/`. These pages are generated from that code: the round, the "
        "payload, the equations of the losses, and the options.\n\n"
    )
    return "# Methods\n\n" + introduction + "\n\n".join([*tables, method_map(), LEFT_OUT]) + "\n"


def method_map() -> str:
    """Return one table for all methods: what is exchanged, what must be equal, what stays at a client."""
    rows = []
    for name, cls in methods.registry().items():
        method = example(cls)
        sent = exchanged(method)
        secure = "no" if cls.requires_individual_payloads(method.params) else "yes"
        facts = [", ".join(f"`{key}` {shape}" for key, shape in sent.items()) or "nothing", equal(cls, sent),
                 stays(cls, sent), secure if sent else "–", "yes" if cls.supports_dp else "no"]  # fmt: skip
        rows.append(f"| [`{name}`]({slug(name)}.md) | " + " | ".join(map(cell, facts)) + " |")
    introduction = (
        "What clients send in two rounds with the default options, where they have different architectures if the "
        "method allows that. *model*: all weights of the client's model; *module*: those of an auxiliary network; B: "
        "public samples of a batch, C: classes, d: features, K: clients. Where all clients have one architecture, "
        "methods with a public set also average weights, unless `average=never`.\n\n"
    )
    head = "| method | clients send | equal at all clients | stays at a client | secure aggregation | DP |\n"
    return "## Map\n\n" + introduction + head + "|---|---|---|---|---|---|\n" + "\n".join(rows)


def example(cls: type[Method]) -> Method:
    """Return the method in a federation of different architectures, or of one where it needs that."""
    params = make_params(cls, None, "fixed", {})
    names = ("resnet10", "resnet12", "simple_cnn", "mlp")
    clients = tuple(replace(client, model=model) for client, model in zip(EXAMPLE.clients, names, strict=True))
    try:
        return cls(params, replace(EXAMPLE, clients=clients))
    except UsageError:
        return cls(params, EXAMPLE)


def exchanged(method: Method) -> dict[str, str]:
    """Return name and shape of everything that a client sends; tensors of one network are one entry."""
    fields: dict[str, str] = {}
    for action in chain.from_iterable(islice(action_sequences(method), 2)):
        if action.kind == "exchange":
            declared = declared_by(getattr(method, action.function))
            fields |= {key.split("/")[0]: MODULE if "/" in key else shape for key, shape in declared.items()
                       if shape != KEPT and (MODEL not in declared.values() or "/" not in key)}  # fmt: skip
    return fields


def equal(cls: type[Method], sent: dict[str, str]) -> str:
    sliced = issubclass(cls, SlicedModel)
    facts = {
        "architecture up to its width": sliced,
        "architecture": not cls.heterogeneous and not sliced,
        "feature width (a projection makes it so)": issubclass(cls, SharedFeatures),
        "a small network": cls.heterogeneous and MODULE in sent.values() and not issubclass(cls, SharedFeatures),
        "public set": cls.needs_public,
    }
    return ", ".join(fact for fact, holds in facts.items() if holds) or "nothing"


def stays(cls: type[Method], sent: dict[str, str]) -> str:
    if issubclass(cls, FedBN):
        return "samples, normalisation layers"
    if MODEL in sent.values():
        return "samples"
    return "samples, model without its head" if "head" in sent else "samples, model"


def method_page(name: str, cls: type[Method]) -> str:
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    facts = [
        "different architectures" if cls.heterogeneous else "one architecture for all",
        "needs a public set" if cls.needs_public else "no public set",
    ]
    blocks = [
        f"# {name}",
        f"{text(cls.title[0].upper() + cls.title[1:])}.",
        f"*{text(' '.join(module.split()))}*" if cls.paper else "",
        f"**{' · '.join(facts)}** · `fedchoir run {name}` · `{source_of(cls)}`",
        text(inspect.getdoc(cls) or ""),
        f"## A round\n\n```python\n{round_source(cls)}\n```",
        loss_sources(cls),
        payloads(cls),
        equations(cls),
        own_options(name, cls),
        left_open(name),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def left_open(name: str) -> str:
    """Return what the method's paper does not give, and what runs instead."""
    if not (found := not_given(name)):
        return ""
    lines = [f"| {cell(what)} | {cell(ours)} |" for what, ours in found.items()]
    return "## Not given in the paper\n\n| what | ours |\n|---|---|\n" + "\n".join(lines)


def source_of(cls: type) -> str:
    module = inspect.getmodule(cls)
    return "src/" + module.__name__.replace(".", "/") + ".py" if module else ""


def round_source(cls: type[Method]) -> str:
    """Return the code of ``round``, and of the base class's where it calls that."""
    rounds = []
    for base in cls.__mro__:
        if "round" not in vars(base):
            continue
        code = source(vars(base)["round"])
        rounds.append(code if base is cls else f"# as in {getattr(base, 'name', base.__name__)}\n{code}")
        if "super().round" not in code:
            break
    return "\n\n".join(rounds)


def loss_sources(cls: type[Method]) -> str:
    """Return the code of the losses that the method itself defines."""
    own = [f for name, f in vars(cls).items() if name.endswith("_loss") and inspect.isfunction(f)]
    if not own:
        return ""
    return "## Its losses\n\n```python\n" + "\n\n".join(source(function) for function in own) + "\n```"


def source(function: Any) -> str:
    return inspect.cleandoc("\n" + inspect.getsource(function))


def payloads(cls: type[Method]) -> str:
    """Return what clients send, as they declare it; where that depends on the options, with their defaults."""
    rows = []
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if hasattr(function, "__sends__") and reachable(cls, name):
            fields = declared_by(getattr(cls(make_params(cls, None, "fixed", {}), EXAMPLE), name))
            rows += [f"| `{name}` | `{key}` | `{shape}` |" for key, shape in fields.items()]
    if not rows:
        return "## Payload\n\nClients send nothing."
    head = "## Payload\n\nNothing else can leave a client; names, shapes, dtypes and finite values are checked.\n\n"
    return head + "| step | name | shape |\n|---|---|---|\n" + "\n".join(rows)


def reachable(cls: type[Method], name: str) -> bool:
    """Return whether the method or its bases call the step; a base may define steps that a method does not use."""
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    code = "".join(inspect.getsource(base) for base in bases).replace("``yield from self.average()``", "")
    if name in ("upload", "download") and "self.average()" not in code:  # `Method` defines them, for averaging alone
        code = "".join(inspect.getsource(base) for base in bases if base is not Method)
    return re.search(rf"self\.{name}\b", code) is not None


def equations(cls: type[Method]) -> str:
    """Return the losses that the method's modules import, each with its equation."""
    code = "\n".join(inspect.getsource(m) for base in cls.__mro__ if (m := inspect.getmodule(base)) and
                     m.__name__.startswith("fedchoir.methods."))  # fmt: skip
    names = [n for found in re.findall(r"from fedchoir\.losses import \(?([^)\n]*(?:\n[^)]*)?)", code)
             for n in re.findall(r"\w+", found)]  # fmt: skip
    known = [name for name in dict.fromkeys(names) if name in losses.__all__ and re.search(rf"\b{name}\(", code)]
    for name in known:  # and those that their docstrings refer to
        named = dict.fromkeys(re.findall(r"`(\w+)`", inspect.getdoc(getattr(losses, name)) or ""))
        known += [other for other in named if other in losses.__all__ and other not in known]
    if not known:
        return ""
    return "## Equations\n\n" + "\n\n".join(
        f"### `losses.{name}`\n\n{equation(getattr(losses, name))}" for name in known
    )


def equation(function: Any) -> str:
    """Return a loss's docstring up to its arguments; indented formulas become code blocks."""
    doc = inspect.getdoc(function) or ""
    head = re.split(r"\n\s*(?:Args|Returns|Raises):|\n>>>", doc)[0].rstrip()
    lines = [line if line.startswith("    ") else text(line) for line in head.splitlines()]
    return "\n".join(lines)


def own_options(name: str, cls: type[Method]) -> str:
    """Return the options that the method adds or whose values differ from the defaults, for every profile."""
    fields, shared = cls.Params.model_fields, Settings.model_fields
    values = {profile: effective_options(name, "digits", profile) for profile in ("fixed", "paper", "official")}
    own = [key for key in fields if key not in shared]
    changed = [key for key in shared if any(each[key] != shared[key].default for each in values.values())]
    head = (
        "## Options\n\nThe values that a run on the scenario `digits` uses under each profile; `--set option=value` "
        f"changes one. `fedchoir list --options {name} --scenario S` shows those of other scenarios. All other options "
        "have the [defaults of all methods](../options.md).\n\n"
        "| option | fixed | paper | official | meaning |\n|---|---|---|---|---|\n"
    )
    rows = [[f"`{key}`", *(shown(each[key]) for each in values.values()), cell(fields[key].description or "")]
            for key in (*own, *changed)]  # fmt: skip
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows)
