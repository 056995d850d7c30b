"""Seconds from starting a server and two nodes on this machine to the end of the first round.

    python benchmarks/flower_start.py

Keys are made first. Then `fedchoir serve` and two `fedchoir node` start at the same time as processes of their own,
with TLS and node keys, and run FCCL+. The goal: the first round ends within 60 s.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tomli_w

GOAL = 60.0
SITES = {"a": "mlp", "b": "resnet10@4"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(folder: Path, port: int) -> None:
    """The data of two sites, a public set, keys and the federation file."""
    rng = np.random.default_rng(0)
    images = lambda count: rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)  # noqa: E731
    for name in SITES:
        labels = np.arange(48) % 4
        np.savez(folder / f"{name}.npz", train_x=images(48), train_y=labels, test_x=images(48), test_y=labels)
    np.savez(folder / "public.npz", x=images(40))
    command(folder, "keys", "--host", "127.0.0.1", *(part for name in SITES for part in ("--site", name))).wait()
    federation = {
        "method": "fccl+", "public": "public.npz", "rounds": 2, "address": f"127.0.0.1:{port}", "out": "run",
        "settings": {"image_size": 16, "local_epochs": 1, "public_size": 40, "public_batch": 20, "sync": "epoch"},
        "sites": [{"name": name, "key": f"keys/{name}.pub", "model": model} for name, model in SITES.items()],
    }  # fmt: skip
    (folder / "federation.toml").write_text(tomli_w.dumps(federation))


def command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    log = (folder / f"{arguments[0]}-{arguments[-1].replace('/', '-')}.log").open("wb")
    return subprocess.Popen([sys.executable, "-m", "fedchoir", *arguments], cwd=folder, stdout=log, stderr=log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds")
    timeout = parser.parse_args().timeout
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        prepare(folder, port)
        start = time.perf_counter()
        server = command(folder, "serve", "federation.toml")
        nodes = [
            command(folder, "node", "--server", f"127.0.0.1:{port}", "--data", f"{site}.npz", "--model", model,
                    "--ca", "keys/ca.crt", "--key", f"keys/{site}")
            for site, model in SITES.items()
        ]  # fmt: skip
        events = folder / "run" / "events.jsonl"
        while not (events.exists() and events.read_text().strip()):
            if time.perf_counter() - start > timeout or server.poll() not in (None, 0):
                for log in sorted(folder.glob("*.log")):
                    print(f"== {log.name}\n{log.read_text()[-1500:]}")
                raise SystemExit("the first round did not end")
            time.sleep(0.1)
        seconds = time.perf_counter() - start
        server.wait(timeout=timeout)
        for process in nodes:
            process.terminate()
            process.wait(timeout=60)
    print(f"first round ended after {seconds:.1f} s (goal {GOAL:.0f} s): {'met' if seconds <= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
