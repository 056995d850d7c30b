"""The SuperLink as a child process, and the server's own place in it.

The SuperLink runs in Flower's process isolation, and this process is its ServerApp: what happens is seen here, ends
with an exit code here, and no app bundle is ever unpacked and run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.cli.utils import CliClientHttpInterceptor
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.keys import read_public
from fedchoir.utils.errors import UsageError

START = 60.0  # seconds that a SuperLink may take to start
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedchoir-federation"
version = "1.0.0"
description = "Names the app. Sites run their own copy of fedchoir and never what comes with this."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedchoir"

[tool.flwr.app.components]
serverapp = "fedchoir.deploy.flower_app:server"
clientapp = "fedchoir.deploy.flower_app:client"
"""


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: their files in ``home``, nothing sent to anyone, and our own programs found first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}


def die_with_parent() -> None:
    """In a child: be ended when the parent is, even by kill -9. (Linux; elsewhere a child may be left behind.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


class SuperLinkProcess:
    """A running SuperLink with its sites registered. Use it as a context manager: it ends with the block."""

    def __init__(self, federation: FederationFile, work: Path) -> None:
        self.federation = federation
        self.log = work / "superlink.log"
        self.nodes: dict[int, str] = {}  # site names by node; empty in a rehearsal without keys
        self._work = work
        self._secret = secrets.token_bytes(32)
        host, _, port = federation.address.rpartition(":")
        self._host, self._port = host, port
        near = "127.0.0.1" if host in ("0.0.0.0", "") else host
        self._address = f"{near}:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._heartbeat: HeartbeatSender | None = None
        self._grid: HttpGrid | None = None
        self._control: ControlHttpClient | None = None

    def __enter__(self) -> SuperLinkProcess:
        try:
            self._start()
            self._register()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.finish("" if error is None else f"{type(error).__name__}: {error}")
        self.close()

    def _start(self) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        secret = self._work / "superexec.secret"
        secret.unlink(missing_ok=True)
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._secret)
        f = self.federation
        command = [
            "flower-superlink", "--isolation", "process", "--superexec-auth-secret-file", str(secret),
            "--disable-runtime-dependency-installation", "--host", self._host, "--port", self._port,
        ]  # fmt: skip
        if f.insecure:
            command += ["--insecure"]
        else:
            for path in (f.ca, f.certificate, f.key):
                if not path.exists():
                    raise UsageError(f"there is no {path}: fedchoir keys --host HOST makes it")
            command += ["--ssl-ca-certfile", str(f.ca), "--ssl-certfile", str(f.certificate)]
            command += ["--ssl-keyfile", str(f.key), "--enable-supernode-auth"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(self._work / "flwr"), preexec_fn=die_with_parent
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise UsageError(f"the SuperLink did not start: {last_words(self.log)} (all of it: {self.log})")
            try:
                self._client().ListNodes(ListNodesRequest())
                return
            except httpx.HTTPStatusError:
                return  # it answers
            except httpx.HTTPError:
                time.sleep(0.2)
        raise UsageError(f"the SuperLink did not answer on {self._address} within {START:.0f} s (see {self.log})")

    def _client(self) -> ControlHttpClient:
        if self._control is None:
            self._control = ControlHttpClient.from_server_address(
                server_address=self._address,
                insecure=self.federation.insecure,
                root_certificates=None if self.federation.insecure else str(self.federation.ca),
                interceptors=[CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )
        return self._control

    def _register(self) -> None:
        if self.federation.insecure:
            return
        for site in self.federation.sites:
            if site.revoked:
                continue
            assert site.key is not None
            answer = self._client().RegisterNode(RegisterNodeRequest(public_key=read_public(site.key), name=site.name))
            self.nodes[answer.node_id] = site.name

    def revoke(self, name: str) -> None:
        """From now on the SuperLink refuses this site's key."""
        for node, site in list(self.nodes.items()):
            if site == name:
                self._client().UnregisterNode(UnregisterNodeRequest(node_id=node))
                del self.nodes[node]

    def known(self) -> list[int]:
        """The nodes that the SuperLink knows, connected or not."""
        return [node.node_id for node in self._client().ListNodes(ListNodesRequest()).nodes_info]

    def open(self) -> HttpGrid:
        """Start a run and take its server's part."""
        app = self._work / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(APP)
        (app / "README.md").write_text("Names the app; see pyproject.toml.\n")
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        self._client().StartRun(StartRunRequest(fab=fab_to_proto(fab), federation=""))
        root = None if self.federation.insecure else self.federation.ca.read_bytes()
        self._grid = HttpGrid(self._address, self.federation.insecure, root, token=self._acquire(root))
        told = self._grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = told.task_id, told.run.run_id
        TaskIdentity.node_id = told.context.node_id
        self._grid.set_run(run_from_proto(told.run))
        self._heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(self._grid._runtime_client))
        self._heartbeat.start()
        return self._grid

    def _acquire(self, root: bytes | None) -> str:
        interceptors: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=ACQUIRE),
        ]
        client = RuntimeHttpClient.from_server_address(
            self._address, self.federation.insecure, root, interceptors=interceptors
        )
        end = time.monotonic() + START
        try:
            while time.monotonic() < end:
                answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if answer.token:
                    return str(answer.token)
                time.sleep(0.1)
        finally:
            client.close()
        raise UsageError(f"the SuperLink gave no run within {START:.0f} s (see {self.log})")

    def finish(self, why: str) -> None:
        """Tell the SuperLink that the run is over."""
        if self._grid is None:
            return
        status = SubStatus.FAILED if why else SubStatus.COMPLETED
        try:
            self._grid._retry_invoker.max_tries = 1
            self._grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=why))
        except httpx.HTTPError:
            pass  # it is gone; what counts is on our own disk
        if self._heartbeat is not None and self._heartbeat.is_running:
            self._heartbeat.stop()
        self._grid.close()
        self._grid = None

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def last_words(log: Path) -> str:
    """The last error that a program of Flower's told, in one line; else the last thing that it said."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("ERROR")]
    if not errors:
        return lines[-1] if lines else "it said nothing"
    told = [lines[errors[-1]].removeprefix("ERROR").lstrip(" :")]
    for line in lines[errors[-1] + 1 :]:
        if line.startswith(("INFO", "WARNING", "For more")):
            break
        told.append(line)
    return " ".join(told)
