"""``fedchoir node``: run a SuperNode and carry out the messages that it receives with this site's copy of fedchoir.

The node takes the ClientApp's part in Flower's process isolation. It imports everything once and forks for each
message: a message starts in milliseconds instead of seconds, and a client that hangs is killed at its deadline.
"""

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedchoir.deploy.audit import AuditLog
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.flower_process import FlowerProcess
from fedchoir.deploy.log import Log
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.records import EXTRA_TTL, SITE_INFO, from_records, signature_of, to_records
from fedchoir.deploy.signing import Freshness, SignedMessage, verify_signature
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.headers import InfoHeader, MessageError, validated
from fedchoir.engines.messages import Envelope
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers, VerifiedPeers
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.subprocess_channel import Channel, ChildProcess
from fedchoir.utils.text import printable

POLL_SECONDS = 0.1  # between two attempts to take a message
REFUSED_SECONDS = 120.0  # how long to retry. A server that has just started may not have registered this node's key
# yet, and for a minute it still counts a node that was killed as connected.
RESTART_SECONDS = 3.0  # before a SuperNode that ended is started again


@dataclass(frozen=True)
class NodeOptions:
    """How a site reaches its server, and what it allows."""

    server: str
    policy: Policy
    ca: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @property
    def identity(self) -> Identity:
        if self.key is None or self.policy.peers is None:
            return UnverifiedPeers(self.key)
        return VerifiedPeers(self.key, self.policy.peers)

    def check(self) -> None:
        if ":" not in self.server:
            raise UsageError(f"--server {self.server!r} is not possible: it should be HOST:PORT")
        peers = self.policy.peers
        if peers is not None and (self.key is None or not peers.is_dir()):
            raise UsageError(f"--peers {peers}: it should be a folder with the other sites' .pub files, with --key")
        self.policy.check()
        if self.insecure:
            return
        for option, path in (("--ca", self.ca), ("--key", self.key)):
            if path is None:
                raise UsageError(f"{option} is missing (fedchoir keys creates it); --insecure is only for tests")
            if not path.is_file():
                raise UsageError(f"{option} {path}: there is no such file")


class Node:
    """A site's node. It runs until SIGINT or SIGTERM, or until the server refuses its key."""

    def __init__(self, site: LocalSite, options: NodeOptions, log: Log) -> None:
        options.check()
        self.site, self.options = site, options
        self._write_log = log
        self._supernode = FlowerProcess("flower-supernode", site.work)
        self._address = ""
        self._connected = False
        self._last_connected = time.monotonic()
        self._last_line = ""
        self._audit = AuditLog(site.work / "state" / "audit.jsonl", self._log)

    def run(self) -> None:
        os.umask(0o077)  # the work folder has images and models: only this user may read it
        self.site.work.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt
        self._audit.record("started", self.options.policy.describe(self.site.name))
        try:
            while True:
                self._start_supernode()
                self._take_messages()
                time.sleep(RESTART_SECONDS)
        finally:
            self._supernode.stop()

    def _log(self, line: str) -> None:
        """Print a line, unless it repeats the one before: a node that waits for its server prints that once."""
        if line != self._last_line:
            self._write_log(f"{self.site.name}: {line}")
        self._last_line = line

    # -- the SuperNode ---------------------------------------------------------------------------------------------

    def _start_supernode(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._address = f"127.0.0.1:{port}"
        options = ["--superlink", self.options.server, "--host", "127.0.0.1", "--port", str(port)]
        if self.options.insecure:
            options += ["--insecure"]
        else:
            options += ["--root-certificates", str(self.options.ca)]
            options += ["--auth-supernode-private-key", str(self.options.key)]
        self._supernode.log.unlink(missing_ok=True)
        self._supernode.start(*options)
        self._connected = False

    def _supernode_runs(self) -> bool:
        """Whether the SuperNode runs. Raises `UsageError` if it keeps ending before it is connected."""
        process, server = self._supernode, self.options.server
        if not self._connected and "SuperNode ID" in process.log.read_text(errors="replace"):
            self._connected = True
            self._log(f"connected to {server}: waiting for requests")
        if self._connected:
            self._last_connected = time.monotonic()
        code = process.exit_code()
        if code is None:
            return True
        if code < 0 and code != -signal.SIGINT:  # with SIGINT a SuperNode ends itself when its server is gone
            self._log(f"the connection's process was killed by signal {-code}: connecting again")
        elif self._connected:
            self._log(f"{server} closed the connection (its run is over, or it was stopped): waiting for it")
        elif time.monotonic() > self._last_connected + REFUSED_SECONDS:
            raise UsageError(f"{server} refused {self.site.name}: {process.last_error()} (full log: {process.log})")
        else:
            self._log(f"not connected to {server}: {printable(process.last_error())}; trying again")
        return False

    # -- messages --------------------------------------------------------------------------------------------------

    def _take_messages(self) -> None:
        """Take and handle messages until the SuperNode ends."""
        client = self._supernode.task_client(self._address)
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        try:
            while self._supernode_runs():
                try:
                    token = client.AcquireTask(request).token
                except httpx.HTTPError:
                    token = ""  # the SuperNode is starting or ending
                if token:
                    self._handle_task(token)
                time.sleep(POLL_SECONDS)
        finally:
            client.close()

    def _handle_task(self, token: str) -> None:
        """Handle one message in a child process and push its reply."""
        interceptors: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)
        ]  # fmt: skip
        client = RuntimeHttpClient.from_server_address(self._address, True, None, interceptors=interceptors)
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        try:
            message, context, run, _ = pull_task_input(client)
            child = ChildProcess.fork(
                "the client's process",
                lambda channel: _send_reply(channel, lambda: self.handle(message, run.run_id, context.node_id)),
            )
            heartbeat.start()  # after the fork: threads do not survive it
            reply, error = receive_reply(child, message)
            if error.startswith("the client's process"):  # it did not live to record why
                self._audit.record("failed", f"failed: {error}")
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.FAILED if error else SubStatus.COMPLETED, error)
        except (httpx.HTTPError, RuntimeError, OSError) as error:
            self._log(f"a message was lost: {error}")
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()

    def handle(self, message: Message, run: int, node: int) -> Envelope:
        """Check that a message comes from the federation's server, carry it out, and return the reply."""
        options, site = self.options, self.site
        with self._audit.failures():
            text, blobs = from_records(message.content, options.policy.limit)
            self._verify(message, run, node, text, blobs)
            if message.metadata.message_type == SITE_INFO:
                return self._site_info(Envelope.read(text, blobs, options.policy.limit))
        worker = ClientWorker(site, site.work / "state", options.policy, identity=options.identity, log=self._log)
        return worker.handle(text, blobs)

    def _verify(self, message: Message, run: int, node: int, text: str, blobs: list[bytes]) -> None:
        """Refuse a message that the federation's server did not sign, and one that is late or came before."""
        if self.options.ca is None or self.options.insecure:
            return
        certificate, signature, sent, deadline = signature_of(message.content)
        content = SignedMessage(run, node, message.metadata.message_type, sent, deadline, text, blobs)
        verify_signature(self.options.ca, certificate, signature, content)
        Freshness(self.site.work / "state" / "newest-message").check(content)

    def _site_info(self, envelope: Envelope) -> Envelope:
        self._audit.record("asked", "the server asks about this site: sizes, class names, versions, public set")
        policy, request = self.options.policy, validated(InfoHeader, envelope.header, "the question")
        _, params = policy.accept(request)
        info = self.site.site_info(params, request.public)
        policy.check_public(info["public"]["digest"] if info["public"] else None)
        facts = {name: value for name, value in info.items() if name in ("model", "train", "test", "classes")}
        self._audit.record("sent", f"sends {', '.join(f'{name}: {value}' for name, value in facts.items())}", info=info)
        return Envelope(info)


def _send_reply(channel: Channel, handle: Callable[[], Envelope]) -> None:
    """In the child process: send the reply, or the error, to the node."""
    try:
        reply = handle()
        channel.send([b"reply", reply.text().encode(), *reply.blobs])
    except MessageError as error:
        channel.send([b"error", str(error).encode()])
    except BaseException as error:  # its text may name files or data
        channel.send([b"error", f"the client's process failed: {type(error).__name__}".encode()])


def receive_reply(child: ChildProcess, message: Message) -> tuple[Message, str]:
    """The child's reply to a message and no error, or an error reply and the error. The child is gone afterwards."""
    signed = signature_of(message.content).deadline if message.has_content() else 0.0
    deadline = max(0.0, min(message.metadata.ttl - EXTRA_TTL, signed or math.inf))
    try:
        kind, text, *blobs = child.receive(deadline)
        if kind == b"reply":
            return Message(to_records(text.decode(), blobs), reply_to=message), ""
        why = text.decode(errors="replace")
    except TimeoutError:
        why = f"the client's process took longer than the deadline of {deadline:g} s"
    except WorkerError as error:
        why = str(error)
    finally:
        child.close()
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why[:500]), reply_to=message), why
