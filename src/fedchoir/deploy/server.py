"""``fedchoir serve``: start the SuperLink, wait for the sites, see that they agree, and play the rounds."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from fedchoir import methods
from fedchoir.core.checkpoint import write_json
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.result import Result
from fedchoir.deploy.config import OWN, FederationFile, read_federation
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.deploy.signing import Signer
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.deploy.transport import GridTransport, card_of
from fedchoir.engines.messages import MessageError
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer, conduct, prepare_folder
from fedchoir.privacy.secure_aggregation.crypto import majority
from fedchoir.utils.errors import UsageError

Tell = Callable[[str], None]
ROLL = 1.0  # seconds between two looks for sites


def serve(
    federation: FederationFile,
    *,
    resume: bool = False,
    tell: Tell = print,
    observers: Sequence[Observer] = (),
    check_only: bool = False,
    file: Path | None = None,
) -> Result | None:
    """Run a federation to its end, or the rest of it. ``check_only`` ends before the first round. Sites that ``file``
    comes to call revoked while it runs are locked out before the next message."""
    plan = federation.plan()
    if not check_only:
        prepare_folder(plan, resume)
    sealer = None if federation.insecure else Signer.read(federation.certificate, federation.key)
    plan.out.mkdir(parents=True, exist_ok=True)
    with SuperLinkProcess(federation, plan.out / "link") as link:
        if check_only:
            check_server(federation, plan, tell)
        tell(f"the SuperLink listens on {federation.address}{' WITHOUT TLS' if federation.insecure else ''}")
        post = GridTransport(
            link.open(), link, tuple(site.name for site in federation.sites), question(plan),
            deadline=federation.deadline, limit=federation.limit, sealer=sealer,
        )  # fmt: skip
        if file is not None and not federation.insecure:
            post.before = Revocations(file, link, tell).look
        task = agree(federation, plan, post, tell, all_of_them=check_only)
        if check_only:
            return None
        if federation.secure:
            kind = "strict secure" if federation.secure == "strict" else "secure"
            count = len(task.clients)
            tell(f"answers are hidden in {kind} sums, which take {majority(count)} of {count} sites")
        method = methods.get(plan.experiment.method)(plan.params, task)
        public = public_facts(plan, post)
        engine = FlowerEngine(method, post, run=run_name(plan, resume), public=public)
        notes = [f"sites are tested on their own data only: {', '.join(c.name for c in task.clients)}"]
        return conduct(
            plan, method, engine, (OWN,), notes=notes, device="sites", resume=resume, watchers=list(observers)
        )


class Revocations:
    """Reads the federation's file again when it has changed, and revokes the keys of sites that it calls revoked."""

    def __init__(self, file: Path, link: SuperLinkProcess, tell: Tell) -> None:
        self._file, self._link, self._tell = file, link, tell
        self._seen = file.stat().st_mtime_ns

    def look(self) -> None:
        try:
            changed = self._file.stat().st_mtime_ns
            if changed == self._seen:
                return
            self._seen = changed
            revoked = [site.name for site in read_federation(self._file).sites if site.revoked]
        except (OSError, UsageError) as error:
            self._tell(f"{self._file} was changed and cannot be read, so nobody is revoked: {error}")
            return
        for name in revoked:
            if name in self._link.nodes.values():
                self._link.revoke(name)
                self._tell(f"{name} is revoked: its key is not accepted any more")


def question(plan: Plan) -> dict[str, Any]:
    """What a site is asked when it comes."""
    params = plan.params
    public = None
    if plan.public is not None:
        public = {
            "name": plan.public,
            "seed": plan.experiment.seed,
            "size": params.public_size,
            "image_size": params.image_size,
            "normalisation": params.normalisation,
            "strict": "public_size" in plan.experiment.settings,
        }
    return {"method": plan.experiment.method, "settings": params.model_dump(mode="json"), "public": public}


def agree(
    federation: FederationFile, plan: Plan, post: GridTransport, tell: Tell, *, all_of_them: bool
) -> FederationSpec:
    """Wait for the sites and see that what they hold fits together."""
    post.admit = lambda card: fits(card, federation, post.cards)
    there = wait_for_sites(federation, post, tell, all_of_them)
    for name in there:
        card = post.cards[name]
        tell(f"{name}: {card['model']}, {card['train']} images to train and {card['test']} to test, "
             f"{len(card['classes'])} classes, {card['free'] / 2**30:.0f} GiB free")  # fmt: skip
    first = post.cards[there[0]]
    cards = []
    for site in federation.sites:
        if site.name in post.cards:
            cards.append(card_of(post.cards[site.name]))
        else:
            tell(f"{site.name} is not there: it may join later")
            assert site.model is not None
            cards.append(ClientInfo(site.name, site.model, 0, 0, OWN))
    return FederationSpec(
        classes=federation.classes or tuple(first["classes"]),
        clients=tuple(cards),
        rounds=plan.rounds,
        seed=plan.experiment.seed,
        public_size=first["public"]["size"] if first["public"] else 0,
        image_size=plan.params.image_size,
    )


def wait_for_sites(federation: FederationFile, post: GridTransport, tell: Tell, all_of_them: bool) -> list[str]:
    """All sites; or, when time is up, enough of them, if the architecture of those that lack is known."""
    end = time.monotonic() + federation.wait
    tell(f"waiting for {', '.join(post.names)}")
    told: set[str] = set()
    while True:
        there = post.call_roll()
        for why in set(post.refused.values()) - told:
            told.add(why)
            tell(f"refused: {why}")
        if len(there) == len(post.names) - sum(site.revoked for site in federation.sites):
            return there
        everyone_spoke = len(there) + len(post.refused) >= len(post.names)
        if time.monotonic() > end or (all_of_them and everyone_spoke):
            break
        time.sleep(ROLL)
    lacking = [site for site in federation.sites if site.name not in there]
    reasons = "; ".join(post.refused.values())
    if all_of_them:
        raise UsageError(reasons or f"{lacking[0].name} did not come within {federation.wait:g} s")
    if len(there) < max(1, federation.quorum * len(post.names)):
        raise UsageError(
            f"only {len(there)} of {len(post.names)} sites came within {federation.wait:g} s, and quorum is "
            f"{federation.quorum:.0%}{f' ({reasons})' if reasons else ''}"
        )
    if unknown := [site.name for site in lacking if site.model is None]:
        raise UsageError(
            f"{unknown[0]} did not come within {federation.wait:g} s{f' ({reasons})' if reasons else ''}; give it a "
            "model in the file if the run may start without it"
        )
    return there


def fits(card: Mapping[str, Any], federation: FederationFile, cards: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `MessageError` unless a site's card fits the federation and the sites that came before it."""
    try:
        (entry,) = (site for site in federation.sites if site.name == card["name"])
        classes, public, model = list(card["classes"]), card["public"], str(card["model"])
        if int(card["train"]) < 2:
            raise MessageError(f"has {card['train']} training images; it needs at least 2")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"its card is malformed: {error!r}") from None
    if entry.model is not None and entry.model != model:
        raise MessageError(f"has the architecture {model}, but the file says {entry.model}")
    others = {name: other for name, other in cards.items() if name != card["name"]}
    if federation.classes is not None:
        if strange := [name for name in classes if name not in federation.classes]:
            raise MessageError(f"has the class {strange[0]!r}, which the file does not name")
    elif others:
        name, other = next(iter(others.items()))
        if classes != list(other["classes"]):
            differ = sorted(set(classes) ^ set(other["classes"])) or ["in order"]
            raise MessageError(f"its class names differ from those of {name}: {', '.join(map(str, differ[:5]))}")
    for name, other in others.items():
        if public != other["public"]:
            raise MessageError(f"its public set is not that of {name}: other images (sha256), or another number")


def public_facts(plan: Plan, post: GridTransport) -> dict[str, Any] | None:
    if plan.public is None:
        return None
    some = next(iter(post.cards.values()))
    return {**question(plan)["public"], "digest": some["public"]["digest"]}


def run_name(plan: Plan, resume: bool) -> str:
    """The name under which sites keep their state: the same when a run is resumed."""
    path = plan.out / "federation.json"
    if resume and path.exists():
        return str(json.loads(path.read_text())["run"])
    name = secrets.token_hex(8)
    write_json(path, {"run": name})
    return name


def check_server(federation: FederationFile, plan: Plan, tell: Tell) -> None:
    """What can be said before anyone has come: disk and certificate."""
    tell(f"{plan.out}: {shutil.disk_usage(plan.out).free / 2**30:.0f} GiB free")
    if not federation.insecure:
        end = x509.load_pem_x509_certificate(federation.certificate.read_bytes()).not_valid_after_utc
        tell(f"{federation.certificate}: valid until {end:%Y-%m-%d}")
