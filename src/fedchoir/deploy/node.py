"""``fedchoir node``: a SuperNode, and beside it a worker that runs this site's own copy of fedchoir.

The worker takes the ClientApp's part in Flower's process isolation. It imports everything once and forks for each
message, so a message costs milliseconds to start instead of seconds, a client that hangs is ended at its deadline and
answered for, and a bundle that a server might send is never unpacked, let alone run.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedchoir.deploy.client_worker import Worker
from fedchoir.deploy.records import CARD, deadline_of, from_records, seal_of, to_records
from fedchoir.deploy.signing import verify_signature
from fedchoir.deploy.site_data import LocalSite
from fedchoir.deploy.superlink import ACQUIRE, die_with_parent, environment, last_words
from fedchoir.engines.messages import MAX_BLOB, Envelope
from fedchoir.privacy.eligibility import Secure
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers, VerifiedPeers
from fedchoir.utils.errors import UsageError

POLL = 0.1  # seconds between two looks for a message
REFUSED = 120.0  # seconds: a server that has just started may not know our key yet, and one that we left without a word
# believes for a minute that we are still there
PAUSE = 3.0  # seconds before a SuperNode that ended is started again
Tell = Callable[[str], None]


@dataclass(frozen=True)
class NodeOptions:
    """How a site reaches its server."""

    server: str
    ca: Path | None = None
    key: Path | None = None
    insecure: bool = False
    limit: int = MAX_BLOB
    device: str = "auto"
    secure: Secure = False
    peers: Path | None = None

    @property
    def identity(self) -> Identity:
        return (
            VerifiedPeers(self.key, self.peers)
            if self.key is not None and self.peers is not None
            else UnverifiedPeers()
        )

    def check(self) -> None:
        if ":" not in self.server:
            raise UsageError(f"--server {self.server!r} is not possible: it should be HOST:PORT")
        if self.peers is not None and (self.key is None or not self.peers.is_dir()):
            raise UsageError(
                f"--peers {self.peers}: it should be a folder with the other sites' .pub files, with --key"
            )
        if self.insecure:
            return
        for option, path in (("--ca", self.ca), ("--key", self.key)):
            if path is None:
                raise UsageError(f"{option} is missing (fedchoir keys makes it); --insecure only rehearses")
            if not path.is_file():
                raise UsageError(f"{option} {path}: there is no such file")


class Node:
    """Runs until it is told to stop (SIGINT, SIGTERM), or until the server refuses it."""

    def __init__(self, site: LocalSite, options: NodeOptions, tell: Tell = print) -> None:
        options.check()
        self.site, self.options, self.tell = site, options, tell
        self.log = site.work / "supernode.log"
        self._secret = secrets.token_bytes(32)
        self._supernode: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._connected = False
        self._since = time.monotonic()  # when we were last connected, or began to try

    def run(self) -> None:
        os.umask(0o077)  # what lies in the work folder, images and models among it, is for this site alone
        self.site.work.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        try:
            while True:
                self._start()
                self._serve()
                time.sleep(PAUSE)
        finally:
            self._stop()

    # -- the SuperNode ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._address = f"127.0.0.1:{port}"
        secret = self.site.work / "superexec.secret"
        secret.unlink(missing_ok=True)
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self._secret)
        options = self.options
        command = [
            "flower-supernode", "--isolation", "process", "--superexec-auth-secret-file", str(secret),
            "--superlink", options.server, "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        if options.insecure:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(options.ca), "--auth-supernode-private-key", str(options.key)]
        with self.log.open("wb") as log:
            self._supernode = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(self.site.work / "flwr"), preexec_fn=die_with_parent
            )
        self._connected = False
        self.tell(f"{self.site.name}: connecting to {options.server}")

    def _stop(self) -> None:
        process = self._supernode
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _alive(self) -> bool:
        """Whether the SuperNode runs. One that ends again and again before it is connected is refused."""
        assert self._supernode is not None
        if not self._connected and "SuperNode ID" in self.log.read_text(errors="replace"):
            self._connected = True
            self.tell(f"{self.site.name}: connected")
        if self._connected:
            self._since = time.monotonic()
        if self._supernode.poll() is None:
            return True
        if not self._connected and time.monotonic() > self._since + REFUSED:
            raise UsageError(f"the server refused {self.site.name}: {last_words(self.log)} (all of it: {self.log})")
        self.tell(f"{self.site.name}: the SuperNode ended ({last_words(self.log)}); starting it again")
        return False

    # -- messages --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take messages until the SuperNode ends."""
        client = self._client(SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=ACQUIRE))
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        try:
            while self._alive():
                try:
                    task = client.AcquireTask(request)
                except httpx.HTTPError:
                    task = None  # not up yet, or going down
                if task is not None and task.token:
                    self._handle(task.token)
                time.sleep(POLL)
        finally:
            client.close()

    def _client(self, interceptor: Any) -> RuntimeHttpClient:
        name = "SuperExec" if isinstance(interceptor, SuperExecAuthHttpInterceptor) else "flwr-clientapp"
        return RuntimeHttpClient.from_server_address(
            self._address, True, None, interceptors=[RuntimeVersionHttpInterceptor(component_name=name), interceptor]
        )

    def _handle(self, token: str) -> None:
        client = self._client(RuntimeTokenHttpInterceptor(token))
        heartbeat = None
        try:
            message, context, run, _ = pull_task_input(client)
            child = Child.start(lambda: answer(message, run.run_id, context.node_id, self.site, self.options))
            heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
            heartbeat.start()
            reply, status, why = child.reply(message)
            self.tell(f"{self.site.name}: {message.metadata.message_type} {message.metadata.group_id} {why or 'done'}")
            push_message(client, reply, context)
            push_task_output(client, context, status, why)
        except (httpx.HTTPError, RuntimeError) as error:
            self.tell(f"{self.site.name}: lost a message: {error}")
        finally:
            if heartbeat is not None and heartbeat.is_running:
                heartbeat.stop()
            client.close()


def answer(message: Message, run: int, node: int, site: LocalSite, options: NodeOptions) -> Envelope:
    """What a site says to a message: it is checked to come from the federation's server, then carried out."""
    text, blobs = from_records(message.content, options.limit)
    if options.ca is not None and not options.insecure:
        verify_signature(options.ca, *seal_of(message.content), run, node, text, blobs)
    from fedchoir.utils.devices import pick_device

    site = replace(site, device=pick_device(options.device))  # here and not before the fork: CUDA does not survive it
    if message.metadata.message_type == CARD:
        return site.card(Envelope.read(text, blobs, options.limit))
    return Worker(site, site.work / "state", options.limit, options.identity, options.secure).act(text, blobs)


class Child:
    """A forked process that works out one answer and writes it into a pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid, self._pipe = pid, pipe

    @classmethod
    def start(cls, work: Callable[[], Envelope]) -> Child:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writable)
            return cls(pid, readable)
        try:
            os.close(readable)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with os.fdopen(writable, "wb") as pipe:
                try:
                    letter = work()
                    _write(pipe, [b"ok", letter.text().encode(), *letter.blobs])
                except BaseException as error:
                    _write(pipe, [b"no", f"{type(error).__name__}: {error}".encode()])
        finally:
            os._exit(0)

    def reply(self, message: Message) -> tuple[Message, str, str]:
        """The answer to a message, or an error in its place; the child is gone afterwards."""
        deadline = deadline_of(message.content) or float(message.metadata.ttl)
        raw = self._read(time.monotonic() + deadline)
        if raw is None:
            why = f"took longer than the deadline of {deadline:g} s"
        else:
            kind, *rest = _split(raw) or [b"no", b"the client's process died"]
            if kind == b"ok":
                return Message(to_records(rest[0].decode(), rest[1:]), reply_to=message), SubStatus.COMPLETED, ""
            why = rest[0].decode(errors="replace")
        error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why[:500])
        return Message(error, reply_to=message), SubStatus.FAILED, why

    def _read(self, end: float) -> bytes | None:
        """All that the child writes; None if it is not done at ``end``."""
        chunks: list[bytes] = []
        with os.fdopen(self._pipe, "rb", buffering=0) as pipe:
            while True:
                ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    return None
                chunk = pipe.read(1 << 20)
                if not chunk:
                    os.waitpid(self._pid, 0)
                    return b"".join(chunks)
                chunks.append(chunk)


def _write(pipe: Any, parts: list[bytes]) -> None:
    pipe.write(struct.pack("<I", len(parts)))
    for part in parts:
        pipe.write(struct.pack("<Q", len(part)))
        pipe.write(part)


def _split(raw: bytes) -> list[bytes]:
    """The parts of what was written; empty if it was cut off."""
    parts, at = [], 4
    count = struct.unpack_from("<I", raw)[0] if len(raw) >= 4 else 0
    for _ in range(count):
        size = struct.unpack_from("<Q", raw, at)[0] if len(raw) >= at + 8 else len(raw)
        at += 8 + size
        if at > len(raw):
            return []
        parts.append(raw[at - size : at])
    return parts
