"""A federation of real processes on 127.0.0.1: a server and nodes. All of them end with the test.

Tests run side by side (`make test-e2e`): each has its own folder, ports and Flower files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from tests.conftest import draw_shapes

SITES = {"green": ((0.1, 1, 0.1), 30), "red": ((1, 0.1, 0.1), 20)}
MORE = {"blue": ((0.1, 0.1, 1), 25), "grey": ((0.5, 0.5, 0.5), 25)}
MODELS = {"green": "mlp", "red": "resnet10@4", "blue": "simple_cnn@4", "grey": "mlp"}
SETTINGS = {"image_size": 16, "local_epochs": 2, "local_batch": 16, "public_size": 40, "public_batch": 16}
QUIET = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
WAIT_SECONDS = 240.0  # how long a test waits on a busy machine before it fails
TIMED = "test_two_sites.py"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
PORTS = iter(range(20_000 + 1000 * int(WORKER[2:]) + os.getpid() % 800, 32_000))
FAULTY_PLUGIN = Path(__file__).parent / "faulty_plugin.py"
Process = subprocess.Popen[bytes]


class Federation:
    """Data, keys and processes of a server and its sites, in one folder."""

    def __init__(self, folder: Path, sites: Mapping[str, Any] = SITES) -> None:
        self.folder = folder
        self.names = list(sites)
        self.port = self.free_port()
        self.running: list[Process] = []
        rng = np.random.default_rng(5)
        (folder / "data").mkdir()
        for name, (tint, noise) in sites.items():
            train, test = draw_shapes(rng, 48, tint, noise), draw_shapes(rng, 32, tint, noise)
            arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
            np.savez(folder / "data" / f"{name}.npz", **arrays)
        public = np.random.default_rng(6).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
        np.savez(folder / "public.npz", x=public)
        options = [text for name in sites for text in ("--site", name)]
        self.fedchoir("keys", "--folder", "keys", "--host", "127.0.0.1", *options)

    def write(self, name: str, **values: Any) -> Path:
        """A FEDERATION.toml of a small, quick run; ``values`` override its fields."""
        settings = {**SETTINGS, **values.pop("settings", {})}
        sites = values.pop("sites", [{"name": n, "key": f"keys/{n}.pub", "model": MODELS[n]} for n in self.names])
        fields = {
            "method": "fccl+", "public": "public.npz", "rounds": 3, "address": f"127.0.0.1:{self.port}",
            "deadline": 60, "wait": 120, "out": name, **values, "settings": settings, "sites": sites,
        }  # fmt: skip
        path = self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps(fields))
        return path

    @staticmethod
    def free_port() -> int:
        """Each test process has ports of its own, below those that the system gives to connections. A test may use one
        again: its server is killed and comes back."""
        for port in PORTS:
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("0.0.0.0", port))
                return port
        raise RuntimeError("no port is free")

    def start(self, log: str, *arguments: str, **environment: str) -> Process:
        return self._popen(log, [sys.executable, "-m", "fedchoir", *arguments], environment)

    def program(self, log: str, name: str, *arguments: str) -> Process:
        """Start one of Flower's own programs."""
        return self._popen(log, [str(Path(sys.executable).parent / name), *arguments], {})

    def _popen(self, log: str, command: list[str], environment: dict[str, str]) -> Process:
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, **QUIET, "FLWR_HOME": str(self.folder / "flwr"), **environment},
            )  # fmt: skip
        self.running.append(process)
        return process

    def join(self, path: Path, *options: str, names: Sequence[str] = (), **environment: str) -> list[Process]:
        """Nodes of all sites, or of ``names``, with what they have agreed to as options."""
        nodes = []
        for name in names or self.names:
            agreed = ("--federation", self.copy(name, path), "--public", "public.npz")
            nodes.append(self.node(name, *agreed, *options, **environment))
        return nodes

    def join_with_policy(self, path: Path, *options: str, names: Sequence[str] = ()) -> list[Process]:
        """Nodes of all sites, or of ``names``, each with the policy that `fedchoir node init` wrote at its site."""
        names = names or self.names
        for init in [self.init(name, path, *options) for name in names]:
            self.finished(init)
        return [self.node(name, "--policy", self.policy(name, path)) for name in names]

    def init(self, name: str, path: Path, *options: str) -> Process:
        """Start `fedchoir node init` at one site."""
        agreed = ("--federation", self.copy(name, path), "--public", str(self.folder / "public.npz"))
        return self.start(f"init-{name}.log", "node", "init", *agreed, "--out", self.policy(name, path), *options)

    def copy(self, name: str, path: Path) -> str:
        """A site's copy of a federation's file."""
        copy = self.folder / "sites" / name / path.stem / "federation.toml"
        copy.parent.mkdir(parents=True)
        shutil.copy(path, copy)
        return str(copy)

    @staticmethod
    def policy(name: str, path: Path) -> str:
        return f"sites/{name}/{path.stem}/policy.toml"

    def node(self, name: str, *options: str, **environment: str) -> Process:
        arguments = (
            "node", "--server", f"127.0.0.1:{self.port}", "--data", f"data/{name}.npz", "--model", MODELS[name],
            "--key", f"keys/{name}", "--ca", "keys/ca.crt", "--device", "cpu",
        )  # fmt: skip
        return self.start(f"node-{name}.log", *arguments, *options, **environment)

    def serve(self, path: Path, *options: str, **environment: str) -> Process:
        return self.start("serve.log", "serve", path.name, *options, **environment)

    def fedchoir(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedchoir", *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    def log(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, condition: Callable[[], Any], process: Process | None = None) -> Any:
        """Wait until the condition holds. Fails with all logs after `WAIT_SECONDS`, or if the process ends first."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            if value := condition():
                return value
            if process is not None and process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"the condition did not become true\n{self.all_logs()}")

    def finished(self, process: Process, code: int = 0) -> None:
        self.until(lambda: process.poll() is not None)
        assert process.returncode == code, self.all_logs()

    def all_logs(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*/*.log"), *self.folder.glob("*/superlink/*.log")]
        plain = {log: re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")) for log in logs}
        return "\n".join(f"--- {log.relative_to(self.folder)}\n{text[-3000:]}" for log, text in plain.items())

    def end(self, process: Process, how: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a process that this test started; SIGKILL goes to its whole session."""
        if process.poll() is None:
            os.killpg(process.pid, how) if how is signal.SIGKILL else process.send_signal(how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()  # all at once, then wait for each
        for process in self.running:
            self.end(process)

    @classmethod
    @contextmanager
    def ending(cls, folder: Path, sites: Mapping[str, Any] = SITES) -> Iterator[Federation]:
        """A federation whose processes end with the block."""
        made = cls(folder, sites)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """While tests run side by side, the others begin after this block: it is timed."""
    try:
        yield
    finally:
        _marker(tmp_path_factory).touch()


@pytest.fixture(autouse=True)
def after_the_timed_block(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    def is_timed(item: pytest.Item) -> bool:
        return item.path.name == TIMED

    side_by_side = "PYTEST_XDIST_WORKER" in os.environ and any(map(is_timed, request.session.items))
    if side_by_side and not is_timed(request.node) and request.node.get_closest_marker("e2e"):
        end = time.monotonic() + WAIT_SECONDS
        while not _marker(tmp_path_factory).exists() and time.monotonic() < end:
            time.sleep(0.2)


def _marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp().parent / "timed-block-is-over"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation.ending(tmp_path) as made:
        yield made


@pytest.fixture
def four_sites(tmp_path: Path) -> Iterator[Federation]:
    """The smallest federation in which a site may drop out of a secure sum."""
    with Federation.ending(tmp_path, {**SITES, **MORE}) as made:
        yield made
