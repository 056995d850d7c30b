"""Run Flower's own programs, SuperLink and SuperNode, as child processes.

Both run in Flower's process isolation: fedchoir takes the place of the ServerApp or ClientApp process, so an app
bundle that arrives is never unpacked or run.
"""

import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient

from fedchoir.deploy.superlink_program import SECRET_OPTION, SERVER_TOKEN, server_token
from fedchoir.utils.io import private_write

STOP_SECONDS = 10.0  # how long a program may take to end before it is killed


class FlowerProcess:
    """One Flower program, or the ``command`` that stands for it. Its output goes to a log file in ``work``, its other
    files to ``work/flwr``."""

    def __init__(self, program: str, work: Path, command: Sequence[str] = ()) -> None:
        self.work = work
        self.log = work / f"{program.removeprefix('flower-')}.log"
        self._command = command or [program]
        self._secret = secrets.token_bytes(32)  # proves to the program that this process may take its tasks
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        secret = self.work / "superexec.secret"
        secret.unlink(missing_ok=True)
        private_write(secret, self._secret)
        command = [*self._command, "--isolation", "process", SECRET_OPTION, str(secret), *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(self.work / "flwr"), preexec_fn=die_with_parent
            )

    def exit_code(self) -> int | None:
        """The program's exit code (negative: the signal that killed it); None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def task_client(self, address: str, root_certificates: bytes | None = None) -> RuntimeHttpClient:
        """A client that may take tasks (`AcquireTask`) from this program; TLS with ``root_certificates``."""
        acquire = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        interceptors: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=acquire),
        ]
        client = RuntimeHttpClient.from_server_address(
            address, root_certificates is None, root_certificates, interceptors=interceptors
        )
        self.authorize(client)
        return client

    def authorize(self, client: ProtobufClient) -> None:
        """Add this process's token to all requests of a client."""
        client._client.headers[SERVER_TOKEN] = server_token(self._secret)

    def last_error(self) -> str:
        """The last error in the log as one line; without an error, the last line."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
        errors = re.findall(r"^\s*ERROR[ :]*(.*?)(?=^\s*(?:ERROR|INFO|WARNING|For more)|\Z)", plain, re.M | re.S)
        last = errors[-1] if errors else plain.strip().rpartition("\n")[2]
        return " ".join(last.split()) or "no output"


def environment(folder: Path) -> dict[str, str]:
    """Environment variables for Flower's programs: files in ``folder``, no telemetry, this installation first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "FLWR_HOME": str(folder), "PATH": path}


def die_with_parent() -> None:
    """Make a child process end with its parent, even after kill -9. Only Linux supports this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
