"""Messages between a process and its children, and how the end of either is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest

from fedchoir.utils.errors import WorkerError
from fedchoir.utils.subprocess_channel import Channel, ChildProcess

CHILD = """
import os, sys
from fedchoir.utils.subprocess_channel import parent_channel

channel = parent_channel()
while True:
    command, *frames = channel.receive()
    if command == b"fail":
        print("first\\n\\nsecond", file=sys.stderr)
        sys.exit(3)
    channel.send([command, os.environ["COLOUR"].encode(), *frames])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "channel_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "channel_child"


@pytest.fixture
def others() -> set[psutil.Process]:
    """Children that other tests of this process have left, such as multiprocessing's resource tracker."""
    return set(psutil.Process().children())


@pytest.fixture
def child(module: str) -> Iterator[ChildProcess]:
    process = ChildProcess.spawn("the child", module, {"COLOUR": "red"})
    yield process
    process.close()


def test_messages_arrive_whole_and_in_order(child: ChildProcess) -> None:
    large = os.urandom(3_000_000)
    child.send([b"one"])
    child.send([b"two", b"", large])
    assert wait([child]) == [child]
    assert child.receive() == [b"one", b"red"]
    assert child.receive() == [b"two", b"red", b"", large]


def test_a_dead_child_is_named_with_its_exit_code_and_last_lines(
    child: ChildProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    child.send([b"fail"])
    with pytest.raises(WorkerError, match=r"^the child ended with exit code 3: first \| second$"):
        child.receive()
    assert "first\n\nsecond\n" in capsys.readouterr().err
    with pytest.raises(WorkerError, match="exit code 3"):
        child.send([b"again"])


def test_a_killed_child_is_named_with_its_signal(others: set[psutil.Process], child: ChildProcess) -> None:
    child.send([b"ready"])
    child.receive()
    (process,) = set(psutil.Process().children()) - others
    process.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"^the child was killed by signal 9$"):
        child.receive()


def test_a_child_that_is_late_raises_a_timeout(child: ChildProcess) -> None:
    with pytest.raises(TimeoutError, match=r"the child did not answer within 0\.1 s"):
        child.receive(timeout=0.1)


def test_close_ends_a_busy_child(others: set[psutil.Process]) -> None:
    child = ChildProcess.fork("the fork", lambda channel: time.sleep(60))
    child.close()
    assert set(psutil.Process().children()) <= others


def test_a_fork_answers_with_what_this_process_knows() -> None:
    known = b"known before the fork"

    def work(channel: Channel) -> None:
        channel.send([known, *channel.receive()])

    child = ChildProcess.fork("the fork", work)
    child.send([b"question"])
    assert child.receive(timeout=20) == [known, b"question"]
    with pytest.raises(WorkerError, match="the fork ended with exit code 0"):
        child.receive()
    child.close()


def test_a_child_ends_when_its_parent_is_killed(module: str) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from fedchoir.utils.subprocess_channel import ChildProcess\n"
            f"spawned = ChildProcess.spawn('s', {module!r}, {{'COLOUR': ''}})\n"
            "spawned.send([b'ready']), spawned.receive()\n"
            "forked = ChildProcess.fork('f', lambda channel: time.sleep(60))\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children()
    assert len(children) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
