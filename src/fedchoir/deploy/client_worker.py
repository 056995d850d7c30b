"""Run a client at its site: check a message against the site's policy, carry it out once, and store state and reply."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedchoir.core.actions import Exchange, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.private_training import PrivateTrainer
from fedchoir.core.scores import Evaluation
from fedchoir.core.validation import evaluate_client
from fedchoir.data.scenario import ClientData
from fedchoir.deploy.agreement import Position, check_sequence, sum_terms
from fedchoir.deploy.audit import AuditLog
from fedchoir.deploy.engine import Work
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.received import received_digest
from fedchoir.deploy.run_folder import RunFolder, content_digest
from fedchoir.deploy.run_record import RunRecord
from fedchoir.deploy.site_data import LocalSite, SiteData
from fedchoir.deploy.site_model import keep_model
from fedchoir.engines.headers import KeysHeader, MessageError, RequestHeader, validated
from fedchoir.engines.local.client_factory import new_client
from fedchoir.engines.messages import Envelope, pack_reply, unpack_reply
from fedchoir.methods.base import Method
from fedchoir.models.trust import only_own_models
from fedchoir.payload import Payload
from fedchoir.privacy.budget import BudgetExceededError, PrivacyBudget, Release
from fedchoir.privacy.noise import SecureRandom
from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers
from fedchoir.privacy.secure_aggregation.store import FolderStore
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import UsageError


@dataclass
class ClientWorker:
    """Carries out messages at one site. Between two messages the client is only a file, so a process may die."""

    site: LocalSite
    folder: Path
    policy: Policy
    identity: Identity = field(default_factory=UnverifiedPeers)
    log: Callable[[str], None] = lambda line: None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.folder / "audit.jsonl", self.log)

    @property
    def runs(self) -> RunRecord:
        return RunRecord(self.folder / "runs.jsonl", self.policy.federation_digest, self.policy.run_limit)

    def handle(self, text: str, blobs: list[bytes]) -> Envelope:
        """Carry out a message and return the reply. The new state is saved only if all of it succeeded."""
        with self.audit.failures(), only_own_models(self.site.model):
            request = Envelope.read(text, blobs, self.policy.limit)
            if "key_request" in request.header:
                return self._exchange_keys(validated(KeysHeader, request.header, "the request"))
            return self._answer(request, validated(RequestHeader, request.header, "the request"))

    # -- requests about keys ---------------------------------------------------------------------------------------

    def _exchange_keys(self, message: KeysHeader) -> Envelope:
        request = message.key_request
        self.runs.check(message.run)
        self.audit.record("keys", f"secure sum: the server asks for {request.get('kind')}", run=message.run)
        return Envelope({"keys": self._secure_aggregation(message).exchange_keys(request)})

    def _secure_aggregation(self, message: KeysHeader | RequestHeader) -> SecureAggregationClient:
        """This site's keys for secure aggregation in one run."""
        store = FolderStore(self._run_folder(message).path / "sums")
        return SecureAggregationClient(message.client, store, self.identity, message.run, self.policy.sum_limits)

    def _run_folder(self, message: KeysHeader | RequestHeader) -> RunFolder:
        return RunFolder(self.folder / message.run)

    # -- requests for work -----------------------------------------------------------------------------------------

    def _answer(self, request: Envelope, message: RequestHeader) -> Envelope:
        """The stored reply if this message was carried out before; otherwise carry it out."""
        index, run = message.work[-1].round, self._run_folder(message)
        self.audit.asked(index, [item.name or "evaluate" for item in message.work], request.size, message.run)
        self.policy.check_hours(datetime.datetime.now().time())
        self.runs.check(message.run)
        if any(item.get("kind") == "exchange" for item in request.header["work"]):
            self.policy.check_exchange(message.masking)
        method, data = self._prepare(message)
        digest = content_digest(request)
        if stored := run.stored_reply(digest):
            reply, position, received = stored
            cost = "; the same reply as before"
        else:
            reply, position, received, cost = self._carry_out(request, message, method, data, digest)
        self._record(reply, message, cost)
        if message.masking is not None:
            reply = self._masked(reply, message, method, position, received)
        return reply

    def _record(self, reply: Envelope, message: RequestHeader, cost: str) -> None:
        """Write to the audit log what is about to leave."""
        payloads, deferred, _ = unpack_reply(reply)
        sites = len(message.masking.get("key_shares", ())) if message.masking else 0
        self.audit.sent(message.work[-1].round, payloads, bool(deferred), sites, message.run, cost)

    def _masked(
        self, reply: Envelope, message: RequestHeader, method: Method, position: Position, received: str
    ) -> Envelope:
        unpacked, deferred, seconds = unpack_reply(reply)
        payloads = [Payload({n: p[n] for n in sorted(p)}, scalars=p.scalars) for p in unpacked]  # alike at all sites
        assert message.masking is not None
        terms = replace(sum_terms(method, position, self._run_folder(message).path), received=received)
        payloads, keys = self._secure_aggregation(message).mask_payloads(payloads, message.masking, terms)
        if not deferred:
            keys["clipped"] = 0  # this count depends on the data, like losses
        return pack_reply(payloads, deferred, seconds, keys)

    def _prepare(self, message: RequestHeader) -> tuple[Method, SiteData]:
        """The method and the site's data, as the policy allows."""
        plan, policy = message.plan, self.policy
        cls, params = policy.accept(plan)
        spec = policy.accept_spec(plan)
        if not 0 <= message.client < len(spec.clients):
            raise MessageError(f"refused: there is no client {message.client} among {len(spec.clients)}")
        info = spec.clients[message.client]
        if (info.name, info.model) != (self.site.name, self.site.public_model):
            raise MessageError(
                f"refused: this is {self.site.name} with {self.site.public_model}, not {info.name} with "
                f"{info.model}: the message is for another site"
            )
        data = self.site.prepare(params, spec.classes, plan.public)
        here = data.public.digest if data.public is not None else "" if cls.public_set else None
        policy.check_public(here, plan.public.get("digest", "") if plan.public is not None else None)
        method = cls(params, replace(spec, public_size=len(data.public) if data.public is not None else 0))
        try:
            method.check_private(data.train)
        except UsageError as error:  # it names options and the modality
            raise MessageError(f"refused: {error}") from None
        size = method.spec.public_size
        if spec.public_size != size or spec.inputs != data.train.input_spec:  # they determine the sequence of actions
            raise MessageError(f"refused: the server gives {spec.public_size} public samples, and this site has {size}")
        if info.train != len(data.train):  # weights in a mean depend on it
            raise MessageError(f"refused: this site has {len(data.train)} samples, and the server gives {info.train}")
        return method, data

    def _carry_out(
        self, request: Envelope, message: RequestHeader, method: Method, data: SiteData, digest: str
    ) -> tuple[Envelope, Position, str, str]:
        """Do the work from the client's state; returns the reply, not masked yet, its position, the hash of what the
        client has received, and the cost in words."""
        work = [Work.unpack(request, item, method) for item in request.header["work"]]
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        run = self._run_folder(message)
        client = self._new_client(method, data, message.client)
        position, before = self._load_state(client, run, message.base)
        received = received_digest(before, request)
        position = check_sequence(method, [(item.round, item.action) for item in work], position, run.path)
        last = work[-1].action
        run.check_new(position, "evaluation" if last is None else f"exchange {last.function.__name__}")
        sums = message.masking is not None or (run.path / "sums").exists()
        metrics = self.policy.metrics_leave(method.params, sums, method.payload_noise(method.params))
        payloads, deferred = self._perform(work, client, method, data, metrics)
        packed = pack_reply(payloads if isinstance(last, Exchange) else [], deferred if metrics else {}, self.seconds)
        reply = Envelope.read(packed.text(), packed.blobs)  # as it will be read again
        if reply.size > self.policy.limit:
            raise MessageError(f"the reply has {reply.size} bytes, and {self.policy.limit} are allowed")
        self.runs.add(message.run)
        cost = self._spend(client, method, message.run)
        about = {"round": client.round, "phase": client.phase, "position": position, "received": received}
        run.save_state(message.serial, client.state(), about)
        weights = next((item.weights for item in reversed(work) if item.weights is not None), None)
        keep_model(run.path, method, message.client, self.site.model, data.train, weights)
        run.store_reply(message.serial, digest, reply, position, received)
        run.advance(position)
        run.clean(message.serial, message.base, message.keep)
        return reply, position, received, cost

    def _perform(
        self, work: Sequence[Work], client: Client, method: Method, data: SiteData, metrics: bool
    ) -> tuple[list[Payload], dict[int, DeferredReport]]:
        """The payloads of the last action, and losses and accuracies by round."""
        payloads: list[Payload] = []
        deferred: dict[int, DeferredReport] = {}
        for item, following in zip(work, [*work[1:], None], strict=True):
            client.begin(item.round)
            evaluation = None
            if item.action is not None:
                with self._timed("public" if item.action.batches else "local"):
                    payloads = perform(client, item.action)
            elif metrics or data.validation is not None:  # the site keeps its best model, whoever may know of it
                evaluation = self._evaluate(client, item, method, data)
            if evaluation is not None or following is None or following.round != client.round:
                before = deferred.get(client.round, DeferredReport())
                losses = {**before.report, **client.report()}
                deferred[client.round] = DeferredReport(losses, evaluation or before.evaluation)
        return payloads, deferred

    def _evaluate(self, client: Client, item: Work, method: Method, data: SiteData) -> Evaluation:
        """Scores of the site's own model, or of the weights in the message, on its own tests and validation share."""
        tests = [test.to(client.device) for test in data.tests.values()]
        weights = None if item.weights is None else item.weights.under("weights")
        validation = None if data.validation is None else data.validation.to(client.device)
        with self._timed("evaluate"):
            return evaluate_client(
                method, client, tests, item.detail, item.round, weights=weights, validation=validation
            )  # fmt: skip

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    # -- the client ------------------------------------------------------------------------------------------------

    def _new_client(self, method: Method, data: SiteData, index: int) -> Client:
        device = pick_device(self.site.device)
        view = None
        if data.public is not None:
            view = PublicView(data.public, seed=method.spec.seed, kind=method.params.public_augment, device=device)
        private = ClientData(self.site.name, data.train, self.site.name)
        client = new_client(
            method, index, private, view, device=device, precision=self.site.precision, model=self.site.model
        )
        self.policy.check_size(sum(p.numel() for p in client.parameters()))
        if method.params.dp_noise or method.payload_noise(method.params):
            client.secure_random = SecureRandom()
        return client

    def _load_state(self, client: Client, run: RunFolder, base: int) -> tuple[Position, str]:
        """Restore the client after message ``base``, the last one that the server got a reply to; 0 is the start.
        Returns its position, and the hash of what it had received."""
        if not base:
            return Position(), ""
        flat, about = run.load_state(base)
        client.round, client.phase = int(about["round"]), str(about["phase"])
        client.load(flat)
        return Position(*about["position"]), str(about["received"])

    def _spend(self, client: Client, method: Method, run: str) -> str:
        """Record what the reply reveals in the site's privacy budget; refuse the reply if it would exceed it."""
        s, trainer, limit = client.settings, client.trainer, self.policy.max_epsilon
        if isinstance(trainer, PrivateTrainer):
            release = Release(s.dp_noise, min(1.0, s.local_batch / len(client.private)), trainer.private_steps)
        elif noise := method.payload_noise(method.params):
            release = Release(noise, 1.0, client.noisy_releases)
        else:
            return ""
        if release.steps == 0:
            return "; ε does not change"
        budget = PrivacyBudget(self.folder / "privacy-budget.jsonl", s.dp_delta, limit)
        try:
            before = budget.epsilon()
            epsilon = budget.spend(release, run=run, round=client.round)
        except BudgetExceededError as error:  # any other error names a file, and is for the site's operator alone
            raise MessageError(str(error)) from None
        of = "" if limit is None else f" of {limit:g}"
        return f"; {release.steps} noisy steps cost ε {epsilon - before:.2f}, now {epsilon:.2f}{of}"
