"""What happens at a site: a message comes, the client wakes up from its file, acts, and is put to sleep again."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from fedchoir import methods
from fedchoir.core.actions import Exchange, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.settings import Settings
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import ClientData
from fedchoir.engines.local.engine import new_client
from fedchoir.engines.messages import (
    MAX_BLOB,
    Envelope,
    MessageError,
    pack_reply,
    unpack_action,
    unpack_task,
)
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, load_tensors, save_tensors
from fedchoir.privacy.eligibility import Secure
from fedchoir.privacy.secure_aggregation.client import FolderStore, SecureAggregationClient
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers


@dataclass(frozen=True)
class SiteData:
    """What a site holds, prepared as a federation's settings ask: labels count in the federation's classes."""

    train: ImageSet
    tests: Mapping[str, ImageSet]
    public: PublicSet | None = None


class Site(Protocol):
    """An organisation: its name, its architecture and its data. None of it leaves but what a method declares."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> str: ...

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData: ...


@dataclass
class Worker:
    """Carries out messages at one site. Between two messages the client is a file, so a process may die any time."""

    site: Site
    folder: Path
    limit: int = MAX_BLOB
    identity: Identity = field(default_factory=UnverifiedPeers)
    secure: Secure = False  # whether this site answers only in secure sums, or only in strict ones
    seconds: dict[str, float] = field(default_factory=dict)

    def act(self, text: str, blobs: list[bytes]) -> Envelope:
        """Do what a message says and answer it. State is kept only if all of it could be done."""
        letter = Envelope.read(text, blobs, self.limit)
        header = letter.header
        if "confer" in header:
            return Envelope({"keys": self._desk(header).exchange_keys(header["confer"])})
        self._check_veil(header)
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        method, data = self._prepare(header)
        client = self._wake(method, data, header)
        parts: list[Payload] = []
        news: dict[int, DeferredReport] = {}
        for number, item in enumerate(header["work"]):
            client.begin(int(item["round"]))
            row = None
            if "name" in item:
                parts = self._perform(client, letter, item, method)
            else:
                row = self._evaluate(client, letter, item, method, data)
            last = number + 1 == len(header["work"])
            if row is not None or last or int(header["work"][number + 1]["round"]) != client.round:
                before = news.get(client.round, DeferredReport())
                news[client.round] = DeferredReport({**before.report, **client.report()}, row or before.row)
        keys: dict[str, Any] = {}
        if "veil" in header:
            parts, keys = self._desk(header).hide(parts, header["veil"])
        reply = pack_reply(parts, news, self.seconds, keys)
        if reply.size > self.limit:
            raise MessageError(f"the answer has {reply.size} bytes, and {self.limit} are allowed")
        self._sleep(client, header)
        return reply

    def _desk(self, header: Mapping[str, Any]) -> SecureAggregationClient:
        """Where this site's keys for secure sums lie."""
        store = FolderStore(self._home(header) / "sums")
        return SecureAggregationClient(int(header["client"]), store, self.identity, str(header["run"]))

    def _check_veil(self, header: Mapping[str, Any]) -> None:
        """Whether this site may say what it is asked for: not every site says it without a veil."""
        if not self.secure or not any(item.get("kind") == "exchange" for item in header["work"]):
            return
        masking_request = header.get("veil")
        if masking_request is None or (self.secure == "strict" and masking_request.get("strict") is not True):
            kind = "strict secure" if self.secure == "strict" else "secure"
            raise MessageError(f"{self.site.name} answers only in {kind} sums, and the server asks without one")

    def _prepare(self, header: Mapping[str, Any]) -> tuple[Method, SiteData]:
        plan = header["plan"]
        cls = methods.get(plan["method"])
        params = cls.Params(**plan["settings"])
        task = unpack_task(plan["task"])
        card = task.clients[int(header["client"])]
        if (card.name, card.model) != (self.site.name, self.site.model):
            raise MessageError(
                f"this is {self.site.name} with {self.site.model}, not {card.name} with {card.model}: the message is "
                "for another site"
            )
        data = self.site.prepare(params, task.classes, plan["public"])
        method = cls(params, task)
        if plan["public"] is not None and (data.public is None or data.public.digest != plan["public"]["digest"]):
            raise MessageError("the public set here is not the federation's: its digest differs")
        return method, data

    def _perform(self, client: Client, letter: Envelope, item: Mapping[str, Any], method: Method) -> list[Payload]:
        action = unpack_action(letter, item, method)
        with self._timed("public" if action.batches else "local"):
            parts = perform(client, action)
        return parts if isinstance(action, Exchange) else []

    def _evaluate(
        self, client: Client, letter: Envelope, item: Mapping[str, Any], method: Method, data: SiteData
    ) -> list[float]:
        """Accuracies on the site's own test sets: of its own model, or of the one model that came along."""
        tests = [test.to(client.device) for test in data.tests.values()]
        with self._timed("evaluate"):
            if item["evaluate"] is None:
                return method.evaluate(client, tests)
            own = client.snapshot()
            client.model.load_state_dict(letter.get(item["evaluate"]).under("weights"))
            row = method.evaluate(client, tests)
            client.model.load_state_dict(own)
            return row

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    # -- state between two messages --------------------------------------------------------------------------------

    def _wake(self, method: Method, data: SiteData, header: Mapping[str, Any]) -> Client:
        """The client as it was after the message that the server counts as its last one."""
        task, index = method.task, int(header["client"])
        device = self.site.device
        view = None
        if data.public is not None:
            view = PublicView(data.public, seed=task.seed, kind=method.params.public_augment, device=device)
        private = ClientData(self.site.name, data.train, self.site.name)
        client = new_client(method, index, private, view, device=device, precision=self.site.precision)
        client.secret = self._secret()
        base = int(header["base"])
        if base:
            path = self._path(header, base)
            if not path.exists():
                raise MessageError(
                    f"{self.site.name} has no state after message {base} of this run: was its --work folder lost?"
                )
            flat = load_tensors(path)
            told = json.loads(bytes(flat.pop("about").tolist()))
            client.round, client.phase = int(told["round"]), str(told["phase"])
            client.load(flat)
        return client

    def _secret(self) -> str:
        """Random, made once, and known to nobody but this site: the noise of differential privacy hangs on it."""
        path = self.folder / "secret"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        return path.read_text()

    def _sleep(self, client: Client, header: Mapping[str, Any]) -> None:
        """Write the state after this message, whole or not at all; forget those that nobody can ask for any more."""
        path = self._path(header, int(header["serial"]))
        flat: dict[str, Tensor] = client.state()
        told = json.dumps({"round": client.round, "phase": client.phase}).encode()
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(part, {**flat, "about": torch.tensor(list(told), dtype=torch.uint8)})
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)  # half a state only takes space that the next one needs
            raise MessageError(
                f"{self.site.name} could not write its state to {path.parent}: {error}; it stays as it was before this "
                "message"
            ) from None
        wanted = {path, *(self._path(header, int(n)) for n in (*header["keep"], header["base"]))}
        for old in path.parent.glob("state-*.safetensors"):
            if old not in wanted:
                old.unlink(missing_ok=True)

    def _path(self, header: Mapping[str, Any], serial: int) -> Path:
        return self._home(header) / f"state-{serial:08d}.safetensors"

    def _home(self, header: Mapping[str, Any]) -> Path:
        run = str(header["run"])
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise MessageError(f"{run!r} is not the name of a run")
        return self.folder / run
