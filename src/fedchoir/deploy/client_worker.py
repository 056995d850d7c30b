"""Run a client at its site: load its state from disk, carry out one message, and save the state again."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from fedchoir import methods
from fedchoir.core.actions import Exchange, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.eligibility import Secure
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.private_training import PrivateTrainer
from fedchoir.data.scenario import ClientData
from fedchoir.deploy.agreement import Agreement, Position, check_sequence
from fedchoir.deploy.engine import Work
from fedchoir.deploy.site_data import LocalSite, SiteData
from fedchoir.engines.local.client_factory import new_client
from fedchoir.engines.messages import MAX_BLOB, Envelope, MessageError, pack_reply, unpack_spec
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, load_tensors, save_tensors
from fedchoir.privacy.budget import PrivacyBudget, Release
from fedchoir.privacy.noise import SecureRandom
from fedchoir.privacy.secure_aggregation.client import FolderStore, SecureAggregationClient
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_path
from fedchoir.utils.sizes import readable_bytes


@dataclass
class ClientWorker:
    """Carries out messages at one site. Between two messages the client is only a file, so a process may die."""

    site: LocalSite
    folder: Path
    limit: int = MAX_BLOB
    identity: Identity = field(default_factory=UnverifiedPeers)
    secure: Secure = False
    epsilon: float | None = None  # the site's privacy budget; None: no limit
    agreement: Agreement | None = None
    log: Callable[[str], None] = lambda line: None
    seconds: dict[str, float] = field(default_factory=dict)

    def handle(self, text: str, blobs: list[bytes]) -> Envelope:
        """Carry out a message and return the reply. The new state is saved only if all of it succeeded."""
        request = Envelope.read(text, blobs, self.limit)
        header = request.header
        if "key_request" in header:
            self.log("secure aggregation: received a request about keys")
            return Envelope({"keys": self._secure_aggregation(header).exchange_keys(header["key_request"])})
        self._check_masking(header)
        round_number = int(header["work"][-1]["round"]) + 1
        names = [item.get("name", "evaluate") for item in header["work"]]
        self.log(f"round {round_number}: received {', '.join(names)} ({readable_bytes(request.size)})")
        reply = self._carry_out(request)
        self.log(f"round {round_number}: replies with {len(reply.blobs)} payloads ({readable_bytes(reply.size)})")
        return reply

    def _carry_out(self, request: Envelope) -> Envelope:
        header = request.header
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        method, data = self._prepare(header)
        if method.params.dp_noise and (stored := self._stored_reply(request)):
            self.log("this message was carried out before: the stored reply is sent again")
            return stored
        work = [Work.unpack(request, item, method) for item in header["work"]]
        client, position = self._load_client(method, data, header)
        model = client.model.state_dict() if method.spec.homogeneous else None
        asked = [(item.round, item.action) for item in work]
        position = check_sequence(method, asked, position, self._run_folder(header), model)
        payloads: list[Payload] = []
        deferred: dict[int, DeferredReport] = {}
        for item, following in zip(work, [*work[1:], None], strict=True):
            client.begin(item.round)
            row = None
            if item.action is None:
                row = self._evaluate(client, item.weights, method, data)
            else:
                with self._timed("public" if item.action.batches else "local"):
                    payloads = perform(client, item.action)
            if row is not None or following is None or following.round != client.round:
                before = deferred.get(client.round, DeferredReport())
                deferred[client.round] = DeferredReport({**before.report, **client.report()}, row or before.row)
        if not isinstance(work[-1].action, Exchange):
            payloads = []
        keys: dict[str, Any] = {}
        if "masking" in header:
            payloads, keys = self._secure_aggregation(header).mask_payloads(payloads, header["masking"])
        reply = pack_reply(payloads, deferred, self.seconds, keys)
        if reply.size > self.limit:
            raise MessageError(f"the reply has {reply.size} bytes, and {self.limit} are allowed")
        if method.params.dp_noise:
            self._spend(client, header)
            self._store_reply(request, reply)
        self._save_client(client, position, header)
        return reply

    def _secure_aggregation(self, header: Mapping[str, Any]) -> SecureAggregationClient:
        """This site's keys for secure aggregation in one run."""
        store = FolderStore(self._run_folder(header) / "sums")
        return SecureAggregationClient(int(header["client"]), store, self.identity, str(header["run"]))

    def _check_masking(self, header: Mapping[str, Any]) -> None:
        """Refuse an exchange without the secure aggregation that this site requires."""
        if not self.secure or not any(item.get("kind") == "exchange" for item in header["work"]):
            return
        masking = header.get("masking")
        if masking is None or (self.secure == "strict" and masking.get("strict") is not True):
            kind = "strict secure" if self.secure == "strict" else "secure"
            raise MessageError(f"{self.site.name} requires {kind} aggregation, and the server asks without it")

    def _prepare(self, header: Mapping[str, Any]) -> tuple[Method, SiteData]:
        plan = header["plan"]
        if self.agreement is not None:
            self.agreement.check_plan(plan)
        cls = methods.get(plan["method"])
        params = cls.Params(**plan["settings"])
        spec = unpack_spec(plan["task"])
        if self.agreement is not None:
            self.agreement.check_spec(spec)
        info = spec.clients[int(header["client"])]
        if (info.name, info.model) != (self.site.name, self.site.model):
            raise MessageError(
                f"this is {self.site.name} with {self.site.model}, not {info.name} with {info.model}: the message is "
                "for another site"
            )
        data = self.site.prepare(params, spec.classes, plan["public"])
        method = cls(params, spec)
        if plan["public"] is not None and (data.public is None or data.public.digest != plan["public"]["digest"]):
            raise MessageError("the public set here is not the federation's: its digest differs")
        size = len(data.public.images) if data.public is not None else 0
        if spec.public_size != size or spec.image_size != params.image_size:  # they determine the sequence of actions
            raise MessageError(f"refused: the server gives {spec.public_size} public images, and this site has {size}")
        return method, data

    def _evaluate(self, client: Client, weights: Payload | None, method: Method, data: SiteData) -> list[float]:
        """Accuracies on the site's own test sets: of its own model, or of the weights in the message."""
        tests = [test.to(client.device) for test in data.tests.values()]
        with self._timed("evaluate"):
            if weights is None:
                return method.evaluate(client, tests)
            own = client.snapshot()
            client.model.load_state_dict(weights.under("weights"))
            row = method.evaluate(client, tests)
            client.model.load_state_dict(own)
            return row

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    # -- state between two messages --------------------------------------------------------------------------------

    def _load_client(self, method: Method, data: SiteData, header: Mapping[str, Any]) -> tuple[Client, Position]:
        """The client, and its position in the sequence of actions, after message ``base``: the last one that the
        server got a reply to."""
        spec, index = method.spec, int(header["client"])
        device = pick_device(self.site.device)
        view = None
        if data.public is not None:
            view = PublicView(data.public, seed=spec.seed, kind=method.params.public_augment, device=device)
        private = ClientData(self.site.name, data.train, self.site.name)
        client = new_client(method, index, private, view, device=device, precision=self.site.precision)
        if method.params.dp_noise:
            client.secure_random = SecureRandom()
        base, position = int(header["base"]), Position()
        if base:
            path = self._state_path(header, base)
            if not path.exists():
                raise MessageError(
                    f"{self.site.name} has no state after message {base} of this run: was its --work folder lost?"
                )
            flat = load_tensors(path)
            about = json.loads(bytes(flat.pop("about").tolist()))
            client.round, client.phase = int(about["round"]), str(about["phase"])
            position = Position(*about["position"])
            client.load(flat)
        return client, position

    # -- differential privacy --------------------------------------------------------------------------------------

    def _spend(self, client: Client, header: Mapping[str, Any]) -> None:
        """Record what the reply reveals in the site's privacy budget; refuse the reply if it would exceed it."""
        s, trainer = client.settings, client.trainer
        assert isinstance(trainer, PrivateTrainer)
        if trainer.private_steps == 0:
            return
        release = Release(s.dp_noise, min(1.0, s.local_batch / len(client.private)), trainer.private_steps)
        budget = PrivacyBudget(self.folder / "privacy-budget.jsonl", s.dp_delta, self.epsilon)
        try:
            epsilon = budget.spend(release, run=str(header["run"]), round=client.round)
        except UsageError as error:
            raise MessageError(str(error)) from None
        limit = "" if self.epsilon is None else f" of {self.epsilon:g}"
        self.log(f"round {client.round + 1}: {release.steps} private steps; ε is now {epsilon:.2f}{limit}")

    def _stored_reply(self, request: Envelope) -> Envelope | None:
        """The reply to the same message, if it was carried out before: fresh noise would reveal more."""
        path = self._reply_path(request)
        if not path.exists():
            return None
        text, *blobs = [t.numpy().tobytes() for _, t in sorted(load_tensors(path).items())]
        return Envelope(json.loads(text), blobs)

    def _store_reply(self, request: Envelope, reply: Envelope) -> None:
        content = [reply.text().encode(), *reply.blobs]
        tensors = {f"{n:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for n, raw in enumerate(content)}
        with atomic_path(self._reply_path(request)) as part:
            save_tensors(part, tensors)

    def _reply_path(self, request: Envelope) -> Path:
        """Named after the message's content, so that another message of the same number has another reply."""
        header = request.header
        content = [header[name] for name in ("plan", "base", "work")] + [header.get("masking")]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for blob in request.blobs:
            digest.update(hashlib.sha256(blob).digest())
        serial = int(header["serial"])
        return self._run_folder(header) / f"reply-{serial:08d}-{digest.hexdigest()[:32]}.safetensors"

    def _save_client(self, client: Client, position: Position, header: Mapping[str, Any]) -> None:
        """Write the state after this message, and delete those that the server cannot ask for any more."""
        path = self._state_path(header, int(header["serial"]))
        about = json.dumps({"round": client.round, "phase": client.phase, "position": position}).encode()
        try:
            with atomic_path(path) as part:
                save_tensors(part, {**client.state(), "about": torch.tensor(list(about), dtype=torch.uint8)})
        except (OSError, SafetensorError) as error:
            raise MessageError(
                f"{self.site.name} could not write its state to {path.parent}: {error}; its state before this message "
                "is intact"
            ) from None
        wanted = {path, *(self._state_path(header, int(n)) for n in (*header["keep"], header["base"]))}
        serials = {file.stem.split("-")[1] for file in wanted}
        for old in (*path.parent.glob("state-*"), *path.parent.glob("reply-*")):
            if old.stem.split("-")[1] not in serials:
                old.unlink(missing_ok=True)

    def _state_path(self, header: Mapping[str, Any], serial: int) -> Path:
        return self._run_folder(header) / f"state-{serial:08d}.safetensors"

    def _run_folder(self, header: Mapping[str, Any]) -> Path:
        run = str(header["run"])
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise MessageError(f"{run!r} is not the name of a run")
        return self.folder / run
