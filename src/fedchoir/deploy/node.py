"""``fedchoir node``: run a SuperNode and carry out the messages that it receives with this site's copy of fedchoir.

The node takes the ClientApp's part in Flower's process isolation. It imports everything once and forks for each
message: a message starts in milliseconds instead of seconds, and a client that hangs is killed at its deadline.
"""

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

from fedchoir.core.eligibility import Secure
from fedchoir.deploy.agreement import Agreement
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.flower_process import FlowerProcess
from fedchoir.deploy.log import Log
from fedchoir.deploy.records import EXTRA_TTL, SITE_INFO, from_records, signature_of, to_records
from fedchoir.deploy.signing import verify_signature
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.messages import MAX_BLOB, Envelope
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers, VerifiedPeers
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.subprocess_channel import Channel, ChildProcess

POLL_SECONDS = 0.1  # between two attempts to take a message
REFUSED_SECONDS = 120.0  # how long to retry. A server that has just started may not have registered this node's key
# yet, and for a minute it still counts a node that was killed as connected.
RESTART_SECONDS = 3.0  # before a SuperNode that ended is started again


@dataclass(frozen=True)
class NodeOptions:
    """How a site reaches its server, and what it requires of messages."""

    server: str
    ca: Path | None = None
    key: Path | None = None
    insecure: bool = False
    limit: int = MAX_BLOB
    secure: Secure = False
    peers: Path | None = None
    epsilon: float | None = None
    agreement: Agreement | None = None

    @property
    def identity(self) -> Identity:
        if self.key is None or self.peers is None:
            return UnverifiedPeers()
        return VerifiedPeers(self.key, self.peers)

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

    def run(self) -> None:
        os.umask(0o077)  # the work folder has images and models: only this user may read it
        self.site.work.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt
        try:
            while True:
                self._start_supernode()
                self._take_messages()
                time.sleep(RESTART_SECONDS)
        finally:
            self._supernode.stop()

    def _log(self, line: str) -> None:
        self._write_log(f"{self.site.name}: {line}")

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
        self._log(f"connecting to {self.options.server}")

    def _supernode_runs(self) -> bool:
        """Whether the SuperNode runs. Raises `UsageError` if it keeps ending before it is connected."""
        process, server = self._supernode, self.options.server
        if not self._connected and "SuperNode ID" in process.log.read_text(errors="replace"):
            self._connected = True
            self._log("connected")
        if self._connected:
            self._last_connected = time.monotonic()
        code = process.exit_code()
        if code is None:
            return True
        if code < 0:
            self._log(f"the SuperNode process was killed by signal {-code}; starting it again")
        elif self._connected:
            self._log(f"disconnected from {server}: it ended its run, was stopped or revoked this site; reconnecting")
        elif time.monotonic() > self._last_connected + REFUSED_SECONDS:
            raise UsageError(f"{server} refused {self.site.name}: {process.last_error()} (full log: {process.log})")
        else:
            self._log(f"not connected: {process.last_error()}; trying again")
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
            if error:
                self._log(f"message failed: {error}")
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.FAILED if error else SubStatus.COMPLETED, error)
        except (httpx.HTTPError, RuntimeError) as error:
            self._log(f"a message was lost: {error}")
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()

    def handle(self, message: Message, run: int, node: int) -> Envelope:
        """Check that a message comes from the federation's server, carry it out, and return the reply."""
        options, site = self.options, self.site
        text, blobs = from_records(message.content, options.limit)
        if options.ca is not None and not options.insecure:
            kind = message.metadata.message_type
            verify_signature(options.ca, *signature_of(message.content), run, node, kind, text, blobs)
        if message.metadata.message_type == SITE_INFO:
            self._log("the server asks for this site's information: sizes, class names, versions")
            request = Envelope.read(text, blobs, options.limit).header
            if options.agreement is not None:
                options.agreement.check_plan(request)
            return Envelope(site.site_info(request))
        worker = ClientWorker(
            site, site.work / "state", limit=options.limit, identity=options.identity, secure=options.secure,
            epsilon=options.epsilon, agreement=options.agreement, log=self._log,
        )  # fmt: skip
        return worker.handle(text, blobs)


def _send_reply(channel: Channel, handle: Callable[[], Envelope]) -> None:
    """In the child process: send the reply, or the error, to the node."""
    try:
        reply = handle()
        channel.send([b"reply", reply.text().encode(), *reply.blobs])
    except BaseException as error:
        channel.send([b"error", f"{type(error).__name__}: {error}".encode()])


def receive_reply(child: ChildProcess, message: Message) -> tuple[Message, str]:
    """The child's reply to a message and no error, or an error reply and the error. The child is gone afterwards."""
    deadline = max(0.0, message.metadata.ttl - EXTRA_TTL)
    try:
        kind, text, *blobs = child.receive(deadline)
        if kind == b"reply":
            return Message(to_records(text.decode(), blobs), reply_to=message), ""
        why = text.decode(errors="replace")
    except TimeoutError:
        why = f"took longer than the deadline of {deadline:g} s"
    except WorkerError as error:
        why = str(error)
    finally:
        child.close()
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why[:500]), reply_to=message), why
