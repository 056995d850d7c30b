"""The server's SuperLink: a child process, the nodes registered with it, and the run that this process drives."""

import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import CliClientHttpInterceptor
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedchoir.deploy import superlink_program
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.flower_process import FlowerProcess
from fedchoir.deploy.keys import read_public
from fedchoir.utils.errors import UsageError

START_SECONDS = 60.0  # how long the SuperLink may take to start, or to offer the run
APP = """[project]
name = "fedchoir-federation"
version = "1.0.0"
description = "A name for the run. Sites run their own copy of fedchoir; this bundle has no code."

[tool.flwr.app]
publisher = "fedchoir"

[tool.flwr.app.components]
serverapp = "fedchoir.deploy:no_server_app"
clientapp = "fedchoir.deploy:no_client_app"
"""


class SuperLinkProcess:
    """A SuperLink with the sites' keys registered."""

    def __init__(self, federation: FederationFile, work: Path) -> None:
        self.federation = federation
        self.nodes: dict[int, str] = {}  # site names by node id; empty without keys (insecure)
        command = (sys.executable, "-P", superlink_program.__file__)
        self._process = FlowerProcess("flower-superlink", work, command)
        self._host, _, self._port = federation.address.rpartition(":")
        self._address = f"{'127.0.0.1' if self._host in ('0.0.0.0', '') else self._host}:{self._port}"
        self._root: bytes | None = None  # root certificate of the TLS connections
        self._control: ControlHttpClient
        self._grid: HttpGrid | None = None
        self._heartbeat: HeartbeatSender | None = None

    @classmethod
    @contextmanager
    def running(cls, federation: FederationFile, work: Path) -> Iterator[Self]:
        """Start a SuperLink and register the sites; it ends with the block."""
        link = cls(federation, work)
        error = ""
        try:
            link._start()
            link._register_sites()
            yield link
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            link._finish_run(error)
            link._process.stop()

    def _start(self) -> None:
        f = self.federation
        options = ["--disable-runtime-dependency-installation", "--host", self._host, "--port", self._port]
        if f.insecure:
            options += ["--insecure"]
        else:
            for path in (f.ca, f.certificate, f.key):
                if not path.exists():
                    raise UsageError(f"{path} is missing: fedchoir keys --host HOST creates it")
            options += ["--ssl-ca-certfile", str(f.ca), "--ssl-certfile", str(f.certificate)]
            options += ["--ssl-keyfile", str(f.key), "--enable-supernode-auth"]
            self._root = f.ca.read_bytes()
        self._control = self._control_client()
        self._process.authorize(self._control)
        self._process.start(*options)
        log = self._process.log
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.exit_code() is not None:
                raise UsageError(f"the SuperLink did not start: {self._process.last_error()} (full log: {log})")
            try:
                self.registered_nodes()
                self._check_guard()
                return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise UsageError(f"the SuperLink did not answer on {self._address} within {START_SECONDS:.0f} s (see {log})")

    def _check_guard(self) -> None:
        """Refuse to go on if a request without this process's token can control the SuperLink."""
        stranger = self._control_client()
        try:
            stranger.ListNodes(ListNodesRequest())
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.FORBIDDEN:
                return
        finally:
            stranger.close()
        raise UsageError("the SuperLink obeys anyone who reaches its port: this version of Flower is not supported")

    def _control_client(self) -> ControlHttpClient:
        interceptors: list[Any] = [CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        return ControlHttpClient.from_server_address(
            self._address, self.federation.insecure, self._root, interceptors=interceptors
        )

    def _register_sites(self) -> None:
        if self.federation.insecure:
            return
        for site in self.federation.sites:
            if not site.revoked:
                assert site.key is not None
                request = RegisterNodeRequest(public_key=read_public(site.key), name=site.name)
                self.nodes[self._control.RegisterNode(request).node_id] = site.name

    def revoke(self, name: str) -> None:
        """Make the SuperLink refuse this site's key from now on."""
        for node in [node for node, site in self.nodes.items() if site == name]:
            self._control.UnregisterNode(UnregisterNodeRequest(node_id=node))
            del self.nodes[node]

    def registered_nodes(self) -> list[int]:
        """Ids of all nodes that the SuperLink knows, connected or not."""
        return [node.node_id for node in self._control.ListNodes(ListNodesRequest()).nodes_info]

    def start_run(self) -> HttpGrid:
        """Start a Flower run and take the part of its ServerApp: returns the grid that reaches the nodes."""
        content, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        self._control.StartRun(StartRunRequest(fab=fab_to_proto(fab), federation=""))
        self._grid = HttpGrid(self._address, self.federation.insecure, self._root, token=self._acquire_task())
        self._process.authorize(self._grid._runtime_client)
        task = self._grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self._grid.set_run(run_from_proto(task.run))
        self._heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(self._grid._runtime_client))
        self._heartbeat.start()
        return self._grid

    def _acquire_task(self) -> str:
        client = self._process.task_client(self._address, self._root)
        end = time.monotonic() + START_SECONDS
        try:
            while time.monotonic() < end:
                task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if task.token:
                    return str(task.token)
                time.sleep(0.1)
        finally:
            client.close()
        raise UsageError(f"the SuperLink offered no run within {START_SECONDS:.0f} s (see {self._process.log})")

    def _finish_run(self, error: str) -> None:
        """Report the end of the run to the SuperLink."""
        if self._grid is None:
            return
        status = SubStatus.FAILED if error else SubStatus.COMPLETED
        try:
            self._grid._retry_invoker.max_tries = 1
            self._grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=error))
        except httpx.HTTPError:
            pass  # the SuperLink is gone; checkpoint and result are on this server's own disk
        if self._heartbeat is not None and self._heartbeat.is_running:
            self._heartbeat.stop()
        self._grid.close()
        self._grid = None
