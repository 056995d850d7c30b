"""Protocols of a simulation that concern its data: a held-out domain, several clients of a domain, unequal sizes."""

from collections.abc import Sequence

from fedchoir.data.options import DataOptions
from fedchoir.data.registry import ScenarioInfo
from fedchoir.utils.errors import UsageError


def clients_per_domain(clients: int | None, domains: Sequence[str]) -> dict[str, int]:
    """The number of clients of every domain: as even as possible, earlier domains first.

    >>> clients_per_domain(6, ["mnist", "usps", "svhn", "syn"])
    {'mnist': 2, 'usps': 2, 'svhn': 1, 'syn': 1}
    """
    each, more = divmod(len(domains) if clients is None else clients, len(domains))
    return {name: each + (position < more) for position, name in enumerate(domains)}


def check_protocol(known: ScenarioInfo, options: DataOptions) -> None:
    """Refuse, before any data is read, options that make no sense in a scenario."""
    if known.kind == "label-skew":
        _check_label_skew(known, options)
    else:
        _check_domain_shift(known, options)


def _check_label_skew(known: ScenarioInfo, options: DataOptions) -> None:
    if options.held_out is not None:
        raise UsageError(
            f"held_out = {options.held_out!r} is not possible with {known.name}, which has one domain: "
            "it needs a scenario with several"
        )
    if options.size_skew and options.partition != "iid":
        raise UsageError(
            f"size_skew = {options.size_skew:g} is not possible with partition = {options.partition!r}, which "
            "determines the sizes itself: partition should be iid"
        )


def _check_domain_shift(known: ScenarioInfo, options: DataOptions) -> None:
    held_out, names = options.held_out, ", ".join(known.domains)
    if held_out is not None and held_out not in known.domains:
        raise UsageError(f"held_out = {held_out!r} is not possible: the domains of {known.name} are {names}")
    counts = clients_per_domain(options.clients, known.domains)
    rest = [count for name, count in counts.items() if name != held_out]
    if not any(rest):
        number = "the only client" if options.clients in (None, 1) else "all clients"
        raise UsageError(f"held_out = {held_out!r} is not possible: {number} would be left out")
    if options.size_skew and max(rest) < 2:
        raise UsageError(
            f"size_skew = {options.size_skew:g} is not possible: no two clients share a domain; set clients to "
            f"{2 * len(counts)} for two in each, or give the sizes of the domains with private"
        )
