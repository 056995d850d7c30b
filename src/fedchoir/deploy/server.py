"""``fedchoir serve``: start the SuperLink, register the sites, check that they fit together, and run the rounds."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.result import Result
from fedchoir.deploy.config import OWN, FederationFile, read_federation
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.deploy.log import Log, LogObserver
from fedchoir.deploy.signing import Signer
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.deploy.transport import GridTransport, SiteInfo, client_info
from fedchoir.engines.messages import MessageError
from fedchoir.experiments.config import Plan
from fedchoir.experiments.prepare import make_method, public_options
from fedchoir.experiments.run import check_folder, run_on_engine
from fedchoir.models.spec import ModelSpec
from fedchoir.models.trust import only_own_models
from fedchoir.privacy.secure_aggregation.terms import threshold_of
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write_json

REGISTRATION_SECONDS = 1.0  # between two looks for new sites


@contextmanager
def private_files() -> Iterator[None]:
    """New files and folders are for this user only: they have losses, aggregates and models."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@private_files()
def serve(federation: FederationFile, log: Log, *, resume: bool = False, file: Path | None = None) -> Result:
    """Run a federation to its end, or resume it. If ``file`` is given and changes during the run, sites that it now
    calls revoked are locked out before the next message."""
    plan = federation.plan()
    check_folder(plan, resume)
    own = [site.model for site in federation.sites if site.model]
    with connected(federation, plan, log) as (link, transport), only_own_models(*own):
        if file is not None and not federation.insecure:
            transport.before_send = Revocations(file, link, log).check
        spec = register_sites(federation, plan, transport, log)
        check_shared_model(spec, federation)
        if federation.secure:
            kind = "strict secure" if federation.secure == "strict" else "secure"
            count = len(spec.clients)
            log(f"payloads are hidden by {kind} aggregation, which needs {threshold_of(count)} of {count} sites")
        method = make_method(plan, plan.params, spec)
        public = public_options(plan)
        if public and not method.public_set:
            first = next(iter(transport.site_info.values())).public
            assert first is not None  # every site needs a public set for this method
            public["digest"] = first.digest
        journal = plan.out / "replies.jsonl"
        engine = FlowerEngine(method, transport, run=run_id(plan, resume), public=public, journal=journal)
        notes = [f"sites are tested on their own data only: {', '.join(c.name for c in spec.clients)}"]
        return run_on_engine(
            plan, method, engine, (OWN,), notes=notes, device="sites", resume=resume, observers=[LogObserver(log)],
            every_round=True,  # sites delete the states that no checkpoint needs, and must not train a round twice
        )  # fmt: skip


@private_files()
def check_federation(federation: FederationFile, log: Log) -> None:
    """Check whether a federation can run: disk, certificate, and that all sites connect and fit together."""
    plan = federation.plan()
    with connected(federation, plan, log) as (_, transport):
        log(f"{plan.out}: {shutil.disk_usage(plan.out).free / 2**30:.0f} GiB free")
        if not federation.insecure:
            end = x509.load_pem_x509_certificate(federation.certificate.read_bytes()).not_valid_after_utc
            log(f"{federation.certificate}: valid until {end:%Y-%m-%d}")
        check_shared_model(register_sites(federation, plan, transport, log, require_all=True), federation)


@contextmanager
def connected(federation: FederationFile, plan: Plan, log: Log) -> Iterator[tuple[SuperLinkProcess, GridTransport]]:
    """A running SuperLink and the transport over it."""
    signer = None if federation.insecure else Signer.read(federation.certificate, federation.key)
    plan.out.mkdir(parents=True, exist_ok=True)
    with SuperLinkProcess.running(federation, plan.out / "superlink") as link:
        log(f"the SuperLink accepts connections on {federation.address}{' WITHOUT TLS' if federation.insecure else ''}")
        transport = GridTransport(
            link.start_run(), link.nodes, tuple(site.name for site in federation.sites), site_info_request(plan),
            deadline=federation.deadline, limit=federation.limit, signer=signer,
        )  # fmt: skip
        transport.admit = lambda info: check_site_info(info, federation, transport.site_info)
        yield link, transport


class Revocations:
    """Reads the federation's file again when it has changed, and revokes the keys of sites marked as revoked."""

    def __init__(self, file: Path, link: SuperLinkProcess, log: Log) -> None:
        self._file, self._link, self._log = file, link, log
        self._read_at = file.stat().st_mtime_ns

    def check(self) -> None:
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at == self._read_at:
                return
            self._read_at = changed_at
            revoked = [site.name for site in read_federation(self._file).sites if site.revoked]
        except (OSError, UsageError) as error:
            self._log(f"{self._file} has changed and cannot be read, so no site is revoked: {error}")
            return
        for name in revoked:
            if name in self._link.nodes.values():
                self._link.revoke(name)
                self._log(f"{name} is revoked: its key is no longer accepted")


def site_info_request(plan: Plan) -> dict[str, Any]:
    """The question to a site that has connected."""
    settings = plan.params.model_dump(mode="json")
    return {"method": plan.experiment.method, "settings": settings, "public": public_options(plan)}


def register_sites(
    federation: FederationFile, plan: Plan, transport: GridTransport, log: Log, *, require_all: bool = False
) -> FederationSpec:
    """Wait for the sites and describe the federation that they form."""
    connected = wait_for_sites(federation, transport, log, require_all)
    clients = []
    for site in federation.sites:
        if site.name in transport.site_info:
            info = transport.site_info[site.name]
            clients.append(client_info(info))
            log(f"{site.name}: {info.model}, {info.train} training and {info.test} test samples, "
                f"{len(info.classes)} classes, {info.free / 2**30:.0f} GiB free")  # fmt: skip
        else:
            log(f"{site.name} is not connected: it may join later")
            assert site.model is not None
            clients.append(ClientInfo(site.name, public_name(site.model), 0, 0, OWN))
    first = transport.site_info[connected[0]]
    return FederationSpec(
        classes=federation.classes or tuple(first.classes),
        clients=tuple(clients),
        rounds=plan.rounds,
        seed=plan.experiment.seed,
        public_size=first.public.size if first.public else 0,
        inputs=first.inputs.spec(),
        metric=plan.experiment.metric,
        compress=plan.experiment.compress or "",
    )


def wait_for_sites(federation: FederationFile, transport: GridTransport, log: Log, require_all: bool) -> list[str]:
    """Names of the connected sites: all of them or, after ``wait`` seconds, a quorum if the file names the models of
    the others."""
    end = time.monotonic() + federation.wait
    log(f"waiting for {', '.join(transport.names)}")
    logged: set[str] = set()
    while True:
        connected = transport.register_sites()
        for reason in set(transport.refused.values()) - logged:
            logged.add(reason)
            log(reason if "refused:" in reason else f"refused: {reason}")
        if len(connected) == len(transport.names) - sum(site.revoked for site in federation.sites):
            return connected
        all_replied = len(connected) + len(transport.refused) >= len(transport.names)
        if time.monotonic() > end or (require_all and all_replied):
            break
        time.sleep(REGISTRATION_SECONDS)
    missing = [site for site in federation.sites if site.name not in connected]
    why = "; ".join(transport.refused.values()) or f"{missing[0].name} did not connect within {federation.wait:g} s"
    if require_all:
        raise UsageError(why)
    if len(connected) < max(1, federation.quorum * len(transport.names)):
        raise UsageError(
            f"only {len(connected)} of {len(transport.names)} sites are connected, and quorum is "
            f"{federation.quorum:.0%} ({why})"
        )
    if unknown := [site.name for site in missing if site.model is None]:
        raise UsageError(f"{why}; if the run may start without {unknown[0]}, give its model in the file")
    return connected


def check_site_info(info: SiteInfo, federation: FederationFile, registered: Mapping[str, SiteInfo]) -> None:
    """Raise `MessageError` unless a site fits the federation and the sites registered before it."""
    entry = next(site for site in federation.sites if site.name == info.name)
    classes = info.classes
    if info.train < 2:
        raise MessageError(f"has {info.train} training samples; it needs at least 2")
    if info.train > (most := entry.max_train or federation.max_train):
        raise MessageError(f"states {info.train} training samples, and max_train is {most}")
    if info.model != public_name(info.model):
        raise MessageError("gives a model with paths or options; it should send its public name")
    if entry.model is not None and public_name(entry.model) != info.model:
        raise MessageError(f"has the architecture {info.model}, but the file names {entry.model}")
    others = {name: other for name, other in registered.items() if name != info.name}
    if federation.classes is not None:
        if unknown := [name for name in classes if name not in federation.classes]:
            raise MessageError(f"has the class {unknown[0]!r}, which the file does not name")
    elif others:
        name, other = next(iter(others.items()))
        if classes != other.classes:
            differ = sorted(set(classes) ^ set(other.classes)) or ["in order"]
            raise MessageError(f"its class names differ from those of {name}: {', '.join(map(str, differ[:5]))}")
    for name, other in others.items():
        if info.inputs != other.inputs:
            raise MessageError(f"has samples of {info.inputs.spec()}, and {name} has {other.inputs.spec()}")
        if info.public != other.public:
            raise MessageError(f"its public set is not that of {name}: other images (sha256), or another number")


def public_name(model: str) -> str:
    try:
        return ModelSpec.parse(model).public_name
    except UsageError as error:
        raise MessageError(str(error)) from None


def check_shared_model(spec: FederationSpec, federation: FederationFile) -> None:
    """Raise `UsageError` if weights are to be averaged whose architecture only the sites know."""
    name = spec.clients[0].model
    known = {ModelSpec.parse(site.model).public_name for site in federation.sites if site.model}
    if spec.homogeneous and name not in known and ModelSpec.parse(name).kind == "remote":
        raise UsageError(
            f"all sites have {name}, which is their own code: the server averages its weights and needs it, too; give "
            'model = "FILE.py:FACTORY" for a site in the file'
        )


def run_id(plan: Plan, resume: bool) -> str:
    """The name under which sites store their state: the same when a run is resumed."""
    path = plan.out / "federation.json"
    if resume and path.exists():
        return str(json.loads(path.read_text())["run"])
    name = secrets.token_hex(8)
    atomic_write_json(path, {"run": name})
    return name
